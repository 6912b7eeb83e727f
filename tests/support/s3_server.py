"""A bucket in memory with S3's protocol, which checks every signature and hash by itself
(Python's standard library; written from AWS's documentation, not from base/sigv4.c).

    python3 s3_server.py FOLDER [PARENT]

writes FOLDER/port when it is ready, and a line per request to FOLDER/log ("METHOD path
STATUS"). The bucket is "mill", the keys are KEY and hush-hush; with the key TOKENKEY goes the
session token TOKEN. It ends with the process PARENT, or the one that started it.

FOLDER/fault holds lines "METHOD WHAT AFTER COUNT": after AFTER requests of that method COUNT
of them end so.
  drop    the connection is closed in the middle of the request's body
  slow    503 SlowDown
  cut     half of the object, then the connection is closed
  wrong   other content of the same length
  short   an answer that announces and has half of the object
  lost    done, but the connection is closed without an answer
  gone    404 NoSuchUpload
  noif    501 to If-None-Match
  error   200 with an error in its body
  html    200 with a page of a proxy
"""
import calendar
import hashlib
import hmac
import http.server
import os
import re
import sys
import threading
import time
import urllib.parse
from email.utils import formatdate

FOLDER = sys.argv[1]
PARENT = int(sys.argv[2]) if len(sys.argv) > 2 else os.getppid()
LOCK = threading.RLock()
OBJECTS = {}  # key: (bytes, when)
UPLOADS = {}  # id: (key, when, {number: bytes})
KEYS = {"KEY": ("hush-hush", None), "TOKENKEY": ("hush-hush", "TOKEN")}
EMPTY = hashlib.sha256(b"").hexdigest()


def stamp(when):
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(when))


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")


class Refusal(Exception):
    def __init__(self, status, code):
        self.status, self.code = status, code


def mac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    # ---- what is asked ----

    def read(self):
        url = urllib.parse.urlsplit(self.path)
        self.raw_path, self.raw_query = url.path, url.query
        self.query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        bucket, _, key = urllib.parse.unquote(url.path)[1:].partition("/")
        self.bucket, self.key = bucket, key
        length = int(self.headers.get("Content-Length", 0))
        if self.fault("drop"):
            self.rfile.read(length // 2)
            self.connection.close()
            raise ConnectionError
        self.body = self.rfile.read(length)
        if len(self.body) != length:
            raise ConnectionError

    def verify(self):
        given = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, "
            r"SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})",
            self.headers.get("Authorization", ""))
        if not given:
            raise Refusal(403, "AccessDenied")
        who, day, region, names, signature = given.groups()
        if who not in KEYS:
            raise Refusal(403, "InvalidAccessKeyId")
        secret, token = KEYS[who]
        if token is not None and self.headers.get("x-amz-security-token") != token:
            raise Refusal(403, "ExpiredToken")
        if region != "us-test-1":
            raise Refusal(400, "AuthorizationHeaderMalformed")
        signed = names.split(";")
        must = {"host"} | {n.lower() for n in self.headers if n.lower().startswith("x-amz-")}
        if not must <= set(signed) or signed != sorted(signed):
            raise Refusal(403, "AccessDenied")
        date, payload = self.headers["x-amz-date"], self.headers["x-amz-content-sha256"]
        when = calendar.timegm(time.strptime(date, "%Y%m%dT%H%M%SZ"))
        if date[:8] != day or abs(when - time.time()) > 900:
            raise Refusal(403, "RequestTimeTooSkewed")
        pairs = sorted((p + "=").split("=")[:2] for p in self.raw_query.split("&") if p)
        canonical = "\n".join(
            [self.command, self.raw_path, "&".join(f"{n}={v}" for n, v in pairs)]
            + [f"{n}:{' '.join(self.headers[n].split())}" for n in signed]
            + ["", names, payload])
        scope = f"{day}/{region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        k = mac(("AWS4" + secret).encode(), day)
        for part in (region, "s3", "aws4_request"):
            k = mac(k, part)
        if not hmac.compare_digest(mac(k, text).hex(), signature):
            raise Refusal(403, "SignatureDoesNotMatch")
        if hashlib.sha256(self.body).hexdigest() != payload:
            raise Refusal(400, "XAmzContentSHA256Mismatch")
        if self.bucket != "mill":
            raise Refusal(404, "NoSuchBucket")

    def fault(self, what):
        path = os.path.join(FOLDER, "fault")
        with LOCK:
            try:
                lines = open(path).read().splitlines()
            except OSError:
                return False
            for i, line in enumerate(lines):
                method, kind, after, count = line.split()
                if method != self.command or kind != what or count == "0":
                    continue
                now = after == "0"
                lines[i] = f"{method} {kind} {int(after) - (not now)} {int(count) - now}"
                with open(path + ".new", "w") as f:
                    f.write("\n".join(lines) + "\n")
                os.rename(path + ".new", path)
                return now
        return False

    # ---- answers ----

    def answer(self, status, body=b"", headers=(), length=None):
        with LOCK, open(os.path.join(FOLDER, "log"), "a") as f:
            f.write(f"{self.command} {self.path} {status}\n")
        if self.fault("lost"):
            self.close_connection = True
            self.connection.close()
            return
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code):
        self.answer(status, f"<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>no</Message></Error>".encode())

    def handle_one(self):
        try:
            self.read()
        except (ConnectionError, OSError):
            self.close_connection = True
            return
        try:
            self.verify()
            if self.fault("slow"):
                raise Refusal(503, "SlowDown")
            with LOCK:
                getattr(self, "on_" + self.command.lower())()
        except Refusal as r:
            self.refuse(r.status, r.code)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one

    # ---- objects ----

    def only_new(self):
        if self.headers.get("If-None-Match") and self.fault("noif"):
            raise Refusal(501, "NotImplemented")
        if self.headers.get("If-None-Match") == "*" and self.key in OBJECTS:
            raise Refusal(412, "PreconditionFailed")

    def on_put(self):
        tag = [("ETag", '"%s"' % hashlib.md5(self.body).hexdigest())]
        if "uploadId" in self.query:
            if self.fault("gone"):
                UPLOADS.pop(self.query["uploadId"], None)
            if self.query["uploadId"] not in UPLOADS:
                raise Refusal(404, "NoSuchUpload")
            UPLOADS[self.query["uploadId"]][2][int(self.query["partNumber"])] = self.body
        else:
            self.only_new()
            OBJECTS[self.key] = (self.body, time.time())
        self.answer(200, b"", tag)

    def found(self):
        if self.key not in OBJECTS:
            raise Refusal(404, "NoSuchKey")
        return OBJECTS[self.key]

    def on_head(self):
        data, when = self.found()
        self.answer(200, b"", [("Last-Modified", formatdate(when, usegmt=True))], len(data))

    def on_get(self):
        if not self.key:
            return self.list_uploads() if "uploads" in self.query else self.list_objects()
        data, when = self.found()
        headers = [("ETag", '"%s"' % hashlib.md5(data).hexdigest())]
        status, wanted = 200, self.headers.get("Range", "")
        if wanted.startswith("bytes="):
            first = int(wanted[6:].rstrip("-"))
            if first >= len(data):
                raise Refusal(416, "InvalidRange")
            headers.append(("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}"))
            status, data = 206, data[first:]
        if self.fault("html"):
            return self.answer(200, b"<html>log in first</html>")
        if self.fault("wrong"):
            data = bytes(255 - b for b in data)
        if self.fault("short"):
            data = data[:len(data) // 2]
        if self.fault("cut"):
            self.answer(status, data[:len(data) // 2], headers, len(data))
            self.close_connection = True
        else:
            self.answer(status, data, headers)

    def on_delete(self):
        if "uploadId" in self.query:
            if UPLOADS.pop(self.query["uploadId"], None) is None:
                raise Refusal(404, "NoSuchUpload")
        else:
            OBJECTS.pop(self.key, None)
        self.answer(204)

    def on_post(self):
        if "uploads" in self.query:
            upload = "up/load+%d" % (len(UPLOADS) + int(time.time() * 1000) % 1000000 * 100)
            UPLOADS[upload] = (self.key, time.time(), {})
            return self.answer(200, f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>".encode())
        upload = self.query.get("uploadId")
        if upload not in UPLOADS:
            raise Refusal(404, "NoSuchUpload")
        if self.fault("error"):
            return self.answer(200, b"<Error><Code>InternalError</Code></Error>")
        self.only_new()
        key, _, parts = UPLOADS[upload]
        wanted = re.findall(r"<Part><PartNumber>(\d+)</PartNumber><ETag>(.*?)</ETag></Part>", self.body.decode())
        data = b""
        for i, (number, tag) in enumerate(wanted):
            part = parts.get(int(number))
            if int(number) != i + 1 or part is None or tag.strip('"') != hashlib.md5(part).hexdigest():
                raise Refusal(400, "InvalidPart")
            data += part
        OBJECTS[key] = (data, time.time())
        del UPLOADS[upload]
        self.answer(200, b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>")

    # ---- lists, of three a page ----

    def page(self, names, after):
        names = sorted(n for n in names if n > after)
        return names[:3], len(names) > 3

    def list_objects(self):
        keys, more = self.page((k for k in OBJECTS if k.startswith(self.query.get("prefix", ""))),
                               self.query.get("continuation-token", ""))
        rows = "".join(f"<Contents><Key>{escape(k)}</Key><LastModified>{stamp(OBJECTS[k][1])}</LastModified>"
                       f"<Size>{len(OBJECTS[k][0])}</Size></Contents>" for k in keys)
        next_ = f"<NextContinuationToken>{escape(keys[-1])}</NextContinuationToken>" if more else ""
        self.answer(200, f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{next_}{rows}</ListBucketResult>".encode())

    def list_uploads(self):
        names = {f"{v[0]}\n{u}": u for u, v in UPLOADS.items() if v[0].startswith(self.query.get("prefix", ""))}
        after = self.query.get("key-marker", "") + "\n" + self.query.get("upload-id-marker", "")
        ids, more = self.page(names, after)
        rows = "".join(f"<Upload><Key>{escape(UPLOADS[names[i]][0])}</Key><UploadId>{names[i]}</UploadId>"
                       f"<Initiated>{stamp(UPLOADS[names[i]][1])}</Initiated></Upload>" for i in ids)
        next_ = ("<NextKeyMarker>%s</NextKeyMarker><NextUploadIdMarker>%s</NextUploadIdMarker>"
                 % tuple(ids[-1].split("\n")) if more else "")
        self.answer(200, f"<ListMultipartUploadsResult><IsTruncated>{str(more).lower()}</IsTruncated>{next_}{rows}</ListMultipartUploadsResult>".encode())


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
with open(os.path.join(FOLDER, "port.new"), "w") as f:
    f.write("%d\n" % server.server_port)
os.rename(os.path.join(FOLDER, "port.new"), os.path.join(FOLDER, "port"))
while os.path.exists("/proc/%d" % PARENT) and os.path.isdir(FOLDER):
    time.sleep(0.2)
