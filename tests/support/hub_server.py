"""A hub of models that misbehaves, for tests/e2e/test_pull.sh (Python's standard library).

    python3 hub_server.py FOLDER

writes FOLDER/ports ("HUB ELSEWHERE": two ports, so two origins) when it is ready, and a
line per request to FOLDER/log. What a repository does is said by its name (BEHAVIOUR). It
ends with the process that started it.
"""
import hashlib
import http.server
import json
import os
import sys
import threading
import time
import urllib.parse

FOLDER = sys.argv[1]
LOCK = threading.Lock()
SEEN = {}  # how often a path was asked for
TOKEN = "Bearer hf_secret"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def content(repo, name):
    if name.endswith(".safetensors"):
        block = hashlib.sha512((repo + name).encode()).digest()
        return block * 5000  # 320,000 bytes
    return json.dumps({"name": name, "of": repo}).encode() * 3


NAMES = ("config.json", "tokenizer.json", "README.md", "pytorch_model.bin", "onnx/model.onnx") + SHARDS
LISTS = {  # others list NAMES
    "org/evil": ("../../evil.json",), "org/absolute": ("/tmp/kvmill-evil.json",),
    "org/inner": ("a/../../evil.json",), "org/twice": ("config.json", "config.json"),
    "org/escape": ("a\x1b[2J.json",), "org/nested": ("a/b/config.json", "config.json"),
    "org/gguf": ("m-q4.gguf", "m-q8.gguf"), "org/endless": ("config.json",), "org/empty": (),
}
NO_HASH = {"org/asked", "org/plain", "org/endless"}


def row(repo, name):
    data = content(repo, name)
    r = {"rfilename": name}
    if repo in NO_HASH:
        return r
    r["size"] = len(data)
    if name.endswith(".safetensors"):
        r["blobId"] = "0" * 40
        r["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    else:
        r["blobId"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    return r


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    elsewhere = False

    def log_message(self, *args):
        pass

    def note(self):
        path = urllib.parse.urlsplit(self.path).path
        with LOCK:
            SEEN[(self.command, path)] = SEEN.get((self.command, path), 0) + 1
            with open(os.path.join(FOLDER, "log"), "a") as f:
                f.write("%s %s %s auth=%s range=%s if-range=%s\n" % (
                    "elsewhere" if self.elsewhere else "hub", self.command, self.path,
                    "yes" if self.headers.get("Authorization") else "no",
                    self.headers.get("Range", "-"), self.headers.get("If-Range", "-")))
            return SEEN[(self.command, path)]

    def answer(self, status, body=b"", headers=(), length=None, sent=None):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if sent is None else body[:sent])
        if sent is not None and sent < len(body):
            self.close_connection = True  # in the middle of it

    def forever(self, status=200):
        self.send_response(status)
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            while self.command != "HEAD":
                self.wfile.write(b"[" * 65536)
        except OSError:
            pass
        self.close_connection = True

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        nth = self.note()
        url = urllib.parse.urlsplit(self.path)
        part = urllib.parse.unquote(url.path).split("/")
        if self.elsewhere:
            if self.headers.get("Authorization"):
                return self.answer(400, b"a token came along")
            return self.file("/".join(part[1:3]), "/".join(part[3:]), nth)
        if part[1:3] == ["api", "models"]:
            return self.listing("/".join(part[3:5]), part[6], nth)
        return self.resolve("/".join(part[1:3]), "/".join(part[5:]), nth)

    def listing(self, repo, revision, nth):
        if repo == "org/html":
            return self.answer(200, b"<!DOCTYPE html><p>hello", [("Content-Type", "text/html")])
        if repo == "org/gone" or revision == "nowhere":
            return self.answer(404, b'{"error":"Repository not found"}')
        if repo == "org/gated" and self.headers.get("Authorization") != TOKEN:
            return self.answer(401, b'{"error":"Access to it is restricted"}')
        if repo == "org/flood":
            return self.forever()
        if repo == "org/refuses":
            return self.answer(429, b"", [("Retry-After", "100000")])
        names = LISTS.get(repo, NAMES)
        body = json.dumps({"sha": "c0ffee" * 6 + "abcd", "siblings": [row(repo, n) for n in names]})
        return self.answer(200, body.encode(), [("Content-Type", "application/json")])

    def resolve(self, repo, name, nth):
        if repo == "org/loop" and name in SHARDS:
            return self.answer(302, b"", [("Location", self.path)])
        if repo == "org/cdn" and name in SHARDS:
            where = "http://127.0.0.1:%d/%s/%s?X-Amz-Signature=SIGNATURE" % (ELSEWHERE.server_port, repo, name)
            return self.answer(302, b"", [("Location", where)])
        if repo == "org/files" and name in SHARDS:
            return self.answer(302, b"", [("Location", "file:///etc/passwd")])
        if repo == "org/busy" and nth <= 2:
            return self.answer(429 if nth == 1 else 503, b"", [("Retry-After", "1")])
        if repo == "org/endless":
            return self.forever()
        return self.file(repo, name, nth)

    def file(self, repo, name, nth):
        data = content(repo, name)
        tag = hashlib.sha256(data).hexdigest()
        headers = [("ETag", '"%s"' % tag)] if repo != "org/plain" else []
        if name in SHARDS:
            if repo == "org/short":
                return self.answer(200, data[:1000], headers)
            if repo == "org/long":
                return self.answer(200, data + b"more", headers)
            if repo == "org/wrong":
                return self.answer(200, data[:-1] + b"?", headers)
            if repo == "org/stops":  # until the test says so
                if not os.path.exists(os.path.join(FOLDER, "go")):
                    return self.slow(data, headers)
            if repo == "org/wholes" and nth == 1:  # knows no ranges
                return self.answer(200, data, headers, sent=100000)
        first = 0
        wanted = self.headers.get("Range", "")
        same = self.headers.get("If-Range", '"%s"' % tag) == '"%s"' % tag
        if wanted.startswith("bytes=") and same and repo != "org/wholes":
            first = int(wanted[6:].split("-")[0])
            if first >= len(data):
                return self.answer(416, b"", [("Content-Range", "bytes */%d" % len(data))])
            headers += [("Content-Range", "bytes %d-%d/%d" % (first, len(data) - 1, len(data)))]
        drops = repo == "org/drops" and name in SHARDS and nth <= 7
        return self.answer(206 if first else 200, data[first:], headers, sent=50000 if drops else None)

    def slow(self, data, headers):
        self.send_response(200)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:100000])
        self.wfile.flush()
        while not os.path.exists(os.path.join(FOLDER, "go")):
            time.sleep(0.05)
        self.close_connection = True


class Elsewhere(Handler):
    elsewhere = True


def serve(handler):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


HUB, ELSEWHERE = serve(Handler), serve(Elsewhere)
with open(os.path.join(FOLDER, "ports.new"), "w") as f:
    f.write("%d %d\n" % (HUB.server_port, ELSEWHERE.server_port))
os.rename(os.path.join(FOLDER, "ports.new"), os.path.join(FOLDER, "ports"))
parent = os.getppid()
while os.getppid() == parent:
    time.sleep(0.2)
