"""Golden signatures for base/sigv4.c from an independent implementation (hmac, hashlib).

    python3 tests/golden/sigv4.py > tests/golden/sigv4.json

Cases of the kind of AWS's Signature Version 4 test suite, and the four examples that the
S3 manual works out ("Signature Calculations for the Authorization Header"). Signatures
that AWS has published are asserted below, so the reference is itself checked.
"""
import hashlib
import hmac
import json
import re

SUITE = dict(id="AKIDEXAMPLE", secret="wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
             region="us-east-1", service="service")
MANUAL = dict(id="AKIAIOSFODNN7EXAMPLE", secret="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
              region="us-east-1", service="s3")
SUITE_DATE, MANUAL_DATE = "20150830T123600Z", "20130524T000000Z"


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


EMPTY = sha("")


def mac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def sign(key, method, path, query, headers, payload_sha, date):
    fields = {}
    for name, value in headers:
        fields.setdefault(name.lower(), []).append(re.sub(" +", " ", value.strip()))
    names = ";".join(sorted(fields))
    pairs = sorted(tuple((p + "=").split("=")[:2]) for p in query.split("&") if p)
    canonical = "\n".join(
        [method, path, "&".join(f"{n}={v}" for n, v in pairs)]
        + [f"{n}:{','.join(fields[n])}" for n in sorted(fields)]
        + ["", names, payload_sha])
    scope = f"{date[:8]}/{key['region']}/{key['service']}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{sha(canonical)}"
    k = mac(("AWS4" + key["secret"]).encode(), date[:8])
    for part in (key["region"], key["service"], "aws4_request"):
        k = mac(k, part)
    return (f"AWS4-HMAC-SHA256 Credential={key['id']}/{scope}, SignedHeaders={names}, "
            f"Signature={mac(k, text).hex()}")


def suite(name, method="GET", path="/", query="", more=(), payload="", published=None):
    headers = [("Host", "example.amazonaws.com"), *more, ("X-Amz-Date", SUITE_DATE)]
    return case(name, SUITE, method, path, query, headers, sha(payload), SUITE_DATE,
                published)


def manual(name, method, path, query, more, payload, published):
    headers = [("Host", "examplebucket.s3.amazonaws.com"), *more,
               ("x-amz-content-sha256", sha(payload)), ("x-amz-date", MANUAL_DATE)]
    return case(name, MANUAL, method, path, query, headers, sha(payload), MANUAL_DATE,
                published)


def case(name, key, method, path, query, headers, payload_sha, date, published):
    made = sign(key, method, path, query, headers, payload_sha, date)
    assert published is None or made.endswith("Signature=" + published), (name, made)
    return dict(name=name, key=key, method=method, path=path, query=query,
                headers=[list(h) for h in headers], payload_sha=payload_sha, date=date,
                authorization=made)


cases = [
    suite("get-vanilla",
          published="5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
    suite("post-vanilla", "POST",
          published="5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
    suite("get-vanilla-query-order-key-case", query="Param2=value2&Param1=value1",
          published="b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"),
    suite("get-vanilla-query-order-value", query="Param1=value2&Param1=value1"),
    suite("get-query-without-value", query="uploads"),
    suite("get-query-encoded", query="prefix=a%2Fb%20c&list-type=2"),
    suite("get-unreserved",
          path="/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"),
    suite("get-utf8", path="/%E1%88%B4"),
    suite("get-header-key-duplicate",
          more=[("My-Header1", "value2"), ("My-Header1", "value2"), ("My-Header1", "value1")]),
    suite("get-header-value-trim",
          more=[("My-Header1", " value1"), ("My-Header2", ' "a   b   c"  ')]),
    suite("post-header-key-sort", "POST", more=[("My-Header1", "value1")]),
    suite("post-sts-token", "POST", more=[("X-Amz-Security-Token", "AQoDYXdzEPT//////////wEXAMPLE")]),
    suite("post-body", "POST", more=[("Content-Type", "application/x-www-form-urlencoded")],
          payload="Param1=value1"),
    manual("s3-get-object", "GET", "/test.txt", "", [("Range", "bytes=0-9")], "",
           "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
    manual("s3-put-object", "PUT", "/test%24file.text", "",
           [("Date", "Fri, 24 May 2013 00:00:00 GMT"), ("x-amz-storage-class", "REDUCED_REDUNDANCY")],
           "Welcome to Amazon S3.",
           "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
    manual("s3-get-lifecycle", "GET", "/", "lifecycle", [], "",
           "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
    manual("s3-list-objects", "GET", "/", "max-keys=2&prefix=J", [], "",
           "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
]
print(json.dumps({"cases": cases}, indent=1))
