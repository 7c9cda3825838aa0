#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Servers for tests of sources: prints the port, and serves the files of a folder until its input ends.

usage: servers.py nginx | nginx-tls | apache | swift | faults FOLDER [--skew SECONDS | --port PORT | --tls 1]

nginx, Apache and OpenStack Swift are the real ones, with their configuration in the folder; nginx-tls, and --tls, make a certificate there, ca.pem. "faults" is a
server of ours, for what real servers do once in a million requests: `fault` and its parameters are in the query of a URL, `times` of
them are answered so (without it all) after the first `after`, and the rest well. It writes a line for each request to FOLDER/log: status, path, headers that are
of interest. Below /signed/ it checks signatures, strictly; tokens that begin with "old" are over. --skew sets its clock.

There it takes uploads, too, as S3 does: an object is a file of the folder once it is complete, and each upload that is open a file
"open.NUMBER". Lines of FOLDER/faults are for requests that send, "METHOD WORDS FAULT TIMES": the first TIMES requests with these words in
their target get
  status:NUMBER:CODE   an error      error:CODE   the same with status 200, where S3 has begun to answer before it was done
  reset                the connection ends in the middle of the body
  lost                 what was asked for is done, and the connection ends before an answer
  etag                 ... and answered with another ETag      kms   ..., as where the store has a key for it
  cut                  ... and answered in part
  expire               the token is over from now on
  wait:SECONDS         ... later

exit status: 77 where the server's program is not installed.
"""

import base64
import collections
import contextlib
import datetime
import email.utils
import hashlib
import hmac
import http.server
import json
import os
import pwd
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.parse

KEYS = {"AKTEST": "secret/of+test", "user:name": "another secret", "ASIATEMP": "secret of a token"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(port, process):
    for _ in range(6000):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None:
                sys.exit("the server has ended")
            time.sleep(0.01)
    sys.exit("the server does not answer")


def real(command, port):
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=sys.stderr)
    wait_for(port, process)
    print(port, flush=True)
    sys.stdin.read()
    process.terminate()
    process.wait()


def program(name):
    path = shutil.which(name, path=f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin")
    if path is None:
        sys.exit(77)
    return path


def certificate(folder):
    subprocess.run([program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{folder}/key.pem", "-out",
                    f"{folder}/ca.pem", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
                   check=True, stderr=subprocess.DEVNULL)


def nginx(folder, tls):
    port = free_port()
    secure = ""
    if tls:
        certificate(folder)
        secure = f"ssl_certificate {folder}/ca.pem; ssl_certificate_key {folder}/key.pem;"
    temporary = " ".join(f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    with open(f"{folder}/nginx.conf", "w", encoding="utf-8") as conf:
        conf.write(f"daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors; "
                   f"{'user root;' if os.getuid() == 0 else ''} events {{}} http {{ access_log off; sendfile on; {temporary} "
                   f"server {{ listen 127.0.0.1:{port}{' ssl' if tls else ''}; root {folder}; {secure} }} }}\n")
    real([program("nginx"), "-p", folder, "-c", f"{folder}/nginx.conf", "-e", f"{folder}/errors"], port)


def apache(folder):
    port = free_port()
    modules = "/usr/lib/apache2/modules"
    program("apache2")
    with open(f"{folder}/apache.conf", "w", encoding="utf-8") as conf:
        conf.write(f"ServerRoot {folder}\nServerName localhost\nPidFile {folder}/pid\nListen 127.0.0.1:{port}\nErrorLog {folder}/errors\n"
                   f"LoadModule mpm_event_module {modules}/mod_mpm_event.so\n"
                   f"LoadModule authz_core_module {modules}/mod_authz_core.so\n"
                   f"DefaultRuntimeDir {folder}\n"
                   + f"DocumentRoot {folder}\n<Directory {folder}>\nRequire all granted\n</Directory>\n")
    real([program("apache2"), "-f", f"{folder}/apache.conf", "-D", "FOREGROUND"], port)


SWIFT_PROXY = """[pipeline:main]
pipeline = catch_errors cache s3api tempauth slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:1
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:slo]
use = egg:swift#slo
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
"""


def swift(folder):
    """OpenStack Swift with its S3 interface, of one node: key test:tester, secret testing, region us-east-1."""
    builder, kinds = program("swift-ring-builder"), ("account", "container", "object")
    os.makedirs(f"{folder}/devices/one")
    common = f"[DEFAULT]\nswift_dir = {folder}\ndevices = {folder}/devices\nmount_check = false\nbind_ip = 127.0.0.1\nworkers = 0\nuser = {pwd.getpwuid(os.getuid()).pw_name}\n"
    with open(f"{folder}/swift.conf", "w", encoding="utf-8") as conf:
        conf.write("[swift-hash]\nswift_hash_path_suffix = test\n[storage-policy:0]\nname = one\ndefault = yes\n")
    texts = {"proxy": SWIFT_PROXY, **{kind: f"[pipeline:main]\npipeline = {kind}-server\n[app:{kind}-server]\nuse = egg:swift#{kind}\n" for kind in kinds}}
    ports = {kind: free_port() for kind in texts}
    for kind in kinds:
        for step in (["create", "2", "1", "0"], ["add", f"r1z1-127.0.0.1:{ports[kind]}/one", "1"], ["rebalance"]):
            subprocess.run([builder, f"{folder}/{kind}.builder", *step], stdout=subprocess.DEVNULL, check=False)
    processes = []
    for kind, text in texts.items():
        with open(f"{folder}/{kind}.conf", "w", encoding="utf-8") as conf:
            conf.write(f"{common}bind_port = {ports[kind]}\n{text}")
        processes.append(subprocess.Popen([program(f"swift-{kind}-server"), f"{folder}/{kind}.conf"], stdin=subprocess.DEVNULL,
                                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                          env={**os.environ, "SWIFT_DIR": folder}))
    for process, kind in zip(processes, texts):
        wait_for(ports[kind], process)
    print(ports["proxy"], flush=True)
    sys.stdin.read()
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()


class Faults(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes, and the client would wait for 40 ms
    folder = ""
    skew = 0
    seen = collections.Counter()
    under_way = 0
    most = 0
    lock = threading.Lock()
    uploads = {}
    etags = {}
    over = set()
    sent = collections.Counter()

    def log_message(self, *_):
        pass

    def date_time_string(self, timestamp=None):
        return email.utils.formatdate(time.time() + self.skew, usegmt=True)

    def note(self, status):
        interesting = ("authorization", "x-amz-security-token", "if-match", "range")
        headers = {name.lower(): value for name, value in self.headers.items() if name.lower() in interesting}
        with self.lock, open(f"{self.folder}/log", "a", encoding="utf-8") as log:
            log.write(f"{status} {self.path} {json.dumps(headers)} most {Faults.most}\n")

    def answer(self, status, headers=(), body=b"", length=True, early=None):
        """early: how many bytes are sent before the connection ends, and how."""
        self.note(status)
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if length:
            self.send_header("Content-Length", str(len(body)))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if early is None:
            self.wfile.write(body)
            return
        bytes_sent, how = early
        self.wfile.write(body[:bytes_sent])
        self.wfile.flush()
        if how == "stall":
            time.sleep(30)
        if how == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def refuse(self, status, code):
        self.answer(status, [("Content-Type", "application/xml")], f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())

    # --- signatures: everything is computed from what came ---

    def signature_fault(self):
        """The code of S3's error, or None."""
        match = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([a-z0-9-]+)/s3/aws4_request, SignedHeaders=([a-z0-9;-]+), "
                             r"Signature=([0-9a-f]{64})", self.headers.get("Authorization", ""))
        if match is None:
            return "AccessDenied"
        key, day, region, names, signature = match.groups()
        if region != "eu-test-1":
            return "AuthorizationHeaderMalformed"
        token = self.headers.get("x-amz-security-token")
        if key not in KEYS or (key == "ASIATEMP") != (token is not None):
            return "InvalidAccessKeyId"
        if token is not None and (token.startswith("old") or token in Faults.over):
            return "ExpiredToken"
        stamp = self.headers.get("x-amz-date", "")
        now = datetime.datetime.utcnow() + datetime.timedelta(seconds=self.skew)
        if abs((datetime.datetime.strptime(stamp, "%Y%m%dT%H%M%SZ") - now).total_seconds()) > 900:
            return "RequestTimeTooSkewed"
        signed = names.split(";")
        amazons = {name.lower() for name in self.headers if name.lower().startswith("x-amz-")}
        if signed != sorted(signed) or not {"host", "x-amz-content-sha256", *amazons} <= set(signed):
            return "AccessDenied"
        path, _, query = self.path.partition("?")
        if re.search(r"%(?![0-9A-F]{2})|[^A-Za-z0-9/._~%-]", path) or re.search("%(2D|2E|5F|7E|3[0-9]|[46][1-9A-F]|[57][0-9A])", path):
            return "InvalidURI"
        lines = [self.command, path, query, *(f"{name}:{self.headers[name].strip()}" for name in signed), "", names,
                 self.headers["x-amz-content-sha256"]]
        scope = f"{day}/{region}/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256("\n".join(lines).encode()).hexdigest()])
        step = ("AWS4" + KEYS[key]).encode()
        for part in (day, region, "s3", "aws4_request"):
            step = hmac.new(step, part.encode(), hashlib.sha256).digest()
        expected = hmac.new(step, text.encode(), hashlib.sha256).hexdigest()
        return None if expected == signature and stamp.startswith(day) else "SignatureDoesNotMatch"

    # --- requests ---

    def credentials(self, path):
        """What a container's and an instance's services say. The first answers are of a token that is over."""
        document = {"AccessKeyId": "ASIATEMP", "SecretAccessKey": KEYS["ASIATEMP"], "Expiration": "2100-01-01T00:00:00Z"}
        with self.lock:
            Faults.seen[path] += 1
            document["Token"] = ("old" if Faults.seen[path] == 1 else "new") + "token==" + "=" * len(Faults.over)
        if path == "/container" and self.headers.get("Authorization") != "of-the-container":
            return self.refuse(403, "AccessDenied")
        if path.startswith("/latest/meta-data") and self.headers.get("X-aws-ec2-metadata-token") != "instance-token":
            return self.refuse(401, "Unauthorized")
        if path == "/latest/meta-data/iam/security-credentials/":
            return self.answer(200, body=b"role-name\n")
        return self.answer(200, body=json.dumps(document).encode())

    def do_PUT(self):
        if self.path == "/latest/api/token" and self.headers.get("X-aws-ec2-metadata-token-ttl-seconds"):
            return self.answer(200, body=b"instance-token")
        return self.upload()

    # --- uploads ---

    def do_POST(self):
        self.upload()

    def do_DELETE(self):
        self.upload()

    def upload_fault(self):
        try:
            with open(f"{self.folder}/faults", encoding="utf-8") as file:
                rules = [line.split() for line in file]
        except OSError:
            return ""
        for number, (method, words, fault, times) in enumerate(rules):
            with self.lock:
                if method == self.command and words in self.path and Faults.sent[number] < int(times):
                    Faults.sent[number] += 1
                    return fault
        return ""

    def end_early(self):
        self.note(0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def upload(self):
        fault, length = self.upload_fault(), int(self.headers.get("Content-Length", 0))
        if fault == "reset":
            self.rfile.read(length // 2)
            return self.end_early()
        body = self.rfile.read(length)
        if fault.startswith("wait:"):
            time.sleep(float(fault[5:]))
        if fault == "expire":
            Faults.over.add(self.headers.get("x-amz-security-token"))
        code = self.signature_fault()
        if code is not None:
            return self.refuse(400 if code == "ExpiredToken" else 403, code)
        if fault.startswith("status:"):
            return self.refuse(int(fault.split(":")[1]), fault.split(":")[2])
        if fault.startswith("error:"):
            return self.answer(200, body=b'<?xml version="1.0"?>\n\n' + f"<Error><Code>{fault[6:]}</Code></Error>".encode())
        if body and (self.headers["x-amz-content-sha256"] != "UNSIGNED-PAYLOAD" or "content-md5" not in self.headers["Authorization"]):
            return self.refuse(403, "AccessDenied")
        if not body and self.headers["x-amz-content-sha256"] != hashlib.sha256().hexdigest():
            return self.refuse(403, "XAmzContentSHA256Mismatch")
        if body and base64.b64encode(hashlib.md5(body).digest()).decode() != self.headers["Content-MD5"]:
            return self.refuse(400, "BadDigest")
        path, _, query = self.path.partition("?")
        key = urllib.parse.unquote(path[len("/signed/bucket/"):]).replace("/", "|")
        with self.lock:
            status, headers, answer = self.take(key, dict(urllib.parse.parse_qsl(query, keep_blank_values=True)), body)
        if fault == "lost":
            return self.end_early()
        if fault in ("etag", "kms"):
            headers = [("ETag", '"' + "0" * 32 + '"')] + [("x-amz-server-side-encryption", "aws:kms")] * (fault == "kms")
        return self.answer(status, headers, answer, early=(len(answer) // 2, "end") if fault == "cut" else None)

    def no_upload(self):
        return 404, [], b"<Error><Code>NoSuchUpload</Code></Error>"

    def take(self, key, want, body):
        """Status, headers and body of the answer."""
        name, etag = want.get("uploadId"), '"' + hashlib.md5(body).hexdigest() + '"'
        upload = Faults.uploads.get(name)
        if name is not None and (upload is None or upload["key"] != key):
            return self.no_upload()
        if self.command == "POST" and "uploads" in want:
            number = len(Faults.uploads) + 1
            Faults.uploads[f"an/id+{number}~="] = {"key": key, "parts": {}, "file": f"{self.folder}/open.{number}"}
            open(f"{self.folder}/open.{number}", "w", encoding="utf-8").close()
            return 200, [], f"<R><Key>{key}</Key><UploadId>an/id+{number}~=</UploadId></R>".encode()
        if self.command == "DELETE" and upload is None:
            with contextlib.suppress(OSError):
                os.remove(f"{self.folder}/{key}")
            return 204, [], b""
        if self.command == "PUT" and upload is None:
            return self.store(key, etag, body)
        if self.command == "PUT":
            upload["parts"][int(want["partNumber"])] = (etag, body)
            return 200, [("ETag", etag)], b""
        status, headers, answer = 204, [], b""
        if self.command == "POST":
            named = re.findall(r"<Part><PartNumber>(\d+)</PartNumber><ETag>([^<]*)</ETag></Part>", body.decode())
            parts = [upload["parts"].get(int(number)) for number, _ in named]
            if not parts or any(part is None or (part[0] != etag and '"' + "0" * 32 + '"' != etag) for part, (_, etag) in zip(parts, named)):
                return 400, [], b"<Error><Code>InvalidPart</Code></Error>"
            if any(len(part[1]) < 5 << 20 for part in parts[:-1]):
                return 400, [], b"<Error><Code>EntityTooSmall</Code></Error>"
            sums = b"".join(hashlib.md5(part[1]).digest() for part in parts)
            etag = f'"{hashlib.md5(sums).hexdigest()}-{len(parts)}"'
            self.store(key, etag, b"".join(part[1] for part in parts))
            status, answer = 200, f"<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>".encode()
        os.remove(upload["file"])
        Faults.uploads[name] = {"key": None}
        return status, headers, answer

    def store(self, key, etag, body):
        with open(f"{self.folder}/new", "wb") as file:
            file.write(body)
        os.rename(f"{self.folder}/new", f"{self.folder}/{key}")
        Faults.etags["/" + key] = etag
        return 200, [("ETag", etag)], b""

    # --- ranges ---

    def do_GET(self):
        with self.lock:
            Faults.under_way += 1
            Faults.most = max(Faults.most, Faults.under_way)
        try:
            self.get()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            with self.lock:
                Faults.under_way -= 1

    def get(self):
        if self.path.startswith("http://"):  # as a proxy
            self.path = "/" + self.path.split("/", 3)[3]
        path, _, query = self.path.partition("?")
        if path == "/container" or path.startswith("/latest/"):
            time.sleep(float(query or 0))
            return self.credentials(path)
        if path.startswith("/signed/"):
            fault = self.signature_fault()
            if fault is not None:
                return self.refuse(400 if fault == "ExpiredToken" else 403, fault)
            path = urllib.parse.unquote(path[len("/signed/bucket"):])
            path = "/" + path.strip("/").replace("/", "|")
        want = {name: values[0] for name, values in urllib.parse.parse_qs(query).items()}
        with self.lock:
            Faults.seen[self.path] += 1
            number = Faults.seen[self.path]
        fault = want.get("fault") if number > int(want.get("after", 0)) and number <= int(want.get("times", 1 << 30)) else None
        try:
            with open(self.folder + path, "rb") as file:
                data = file.read()
        except OSError:
            return self.refuse(404, "NoSuchKey")
        return self.serve(data, fault, {"etag": Faults.etags.get(path, '"one"'), **want}, number)

    def serve(self, data, fault, want, number):
        time.sleep(float(want.get("delay", 0)))
        first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
        etag, modified = want.get("etag", '"one"'), "Sat, 28 Nov 2026 00:00:00 GMT"
        if fault == "replaced":
            etag, modified = etag.replace("one", "two"), "Sat, 28 Nov 2026 00:00:01 GMT"
        if fault == "touched":
            modified = "Sat, 28 Nov 2026 00:00:01 GMT"
        if fault == "weaker":
            etag = "W/" + etag
        versions = [("ETag", etag)] * (etag != "none") + [("Last-Modified", modified)]
        if "If-Match" in self.headers and self.headers["If-Match"] != etag and "trusting" not in want:
            return self.refuse(412, "PreconditionFailed")
        if fault == "status":
            region = [("x-amz-bucket-region", want["region"])] if "region" in want else []
            later = [("Retry-After", want["later"])] if "later" in want else []
            self.note(int(want["status"]))
            self.send_response(int(want["status"]))
            body = f"<Error><Code>{want.get('code', 'InternalError')}</Code></Error>".encode()
            body += b"x" * int(want.get("more", 0))
            for name, value in [*region, *later, ("Content-Length", str(len(body))), ("Location", want.get("to", "/"))]:
                self.send_header(name, value)
            self.end_headers()
            return self.wfile.write(body)
        if first >= len(data):
            return self.answer(416, [("Content-Range", f"bytes */{len(data)}"), *versions])
        last = min(last, len(data) - 1)
        body, half = data[first:last + 1], (last + 1 - first) // 2
        said = f"bytes {first}-{last}/{len(data)}"
        if fault == "whole":
            return self.answer(200, versions, data)
        if fault == "shifted":
            return self.answer(206, [("Content-Range", f"bytes {first + 1}-{last + 1}/{len(data)}"), *versions], data[first + 1:last + 2])
        if fault == "less":
            return self.answer(206, [("Content-Range", f"bytes {first}-{first + half - 1}/{len(data)}"), *versions], body[:half])
        if fault == "unsaid":
            return self.answer(206, versions, body)
        if fault == "unknown":
            return self.answer(206, [("Content-Range", f"bytes {first}-{last}/*"), *versions], body)
        if fault == "encoded":
            return self.answer(206, [("Content-Range", said), ("Content-Encoding", "gzip"), *versions], body)
        if fault == "more":
            return self.answer(206, [("Content-Range", said), *versions], body + b"more", length=False)
        if fault == "longer":
            return self.answer(206, [("Content-Range", said), *versions], body + b"more")
        if fault == "continue":
            self.send_response_only(100)
            self.end_headers()
        early = (half, fault) if fault in ("short", "reset", "stall") else None
        if fault == "ended":
            return self.answer(206, [("Content-Range", said), *versions], body[:half], length=False)
        return self.answer(206, [("Content-Range", said), *versions], body, early=early)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        pass


def faults(folder, skew, port, tls):
    Faults.folder, Faults.skew = folder, skew
    open(f"{folder}/log", "a", encoding="utf-8").close()
    server = Server(("127.0.0.1", port), Faults)
    if tls:
        certificate(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{folder}/ca.pem", f"{folder}/key.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kind, folder = sys.argv[1:3]
    if kind == "faults":
        option = dict(zip(sys.argv[3::2], sys.argv[4::2]))
        faults(folder, int(option.get("--skew", 0)), int(option.get("--port", 0)), "--tls" in option)
    elif kind == "apache":
        apache(folder)
    elif kind == "swift":
        swift(folder)
    else:
        nginx(folder, kind == "nginx-tls")
    return 0


if __name__ == "__main__":
    sys.exit(main())
