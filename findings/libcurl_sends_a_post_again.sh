#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# libcurl: a POST over a connection that was kept, which the server ends without an answer, is sent again by itself, over a new one.
# The caller sees one request that went well. So what makes something anew each time, such as the begin of an upload to S3, can be
# done twice, and the end of one twice, too, where the second finds no upload; CURLOPT_FRESH_CONNECT avoids it.
# Seen: curl 7.88.1:
#   kept connection: exit status 0, the server has had 2 POSTs
#   new connection: exit status 52, the server has had 1 POSTs
# Exit status: 0 as above; 1 otherwise; 77 without curl.
set -eu
command -v curl >/dev/null || { echo "no curl"; exit 77; }
folder=$(mktemp -d)
trap 'kill $server 2>/dev/null || true; rm -rf "$folder"' EXIT
cat >"$folder/server.py" <<'END'
import http.server
import sys

FOLDER = sys.argv[1]
posts = 0


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = answer

    def do_POST(self):
        global posts
        posts += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        with open(f"{FOLDER}/posts", "w") as file:
            file.write(str(posts))
        if posts == 1:
            self.close_connection = True  # it was taken, and nothing says so
        else:
            self.answer()


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
END
curl --version | head -n 1 | cut -d ' ' -f 1,2
right=0
for way in kept new; do
  : >"$folder/port"
  python3 "$folder/server.py" "$folder" >"$folder/port" &
  server=$!
  while [ ! -s "$folder/port" ]; do sleep 0.05; done
  url=http://127.0.0.1:$(cat "$folder/port")
  status=0
  if [ $way = kept ]; then
    curl -s "$url/a" --next -s --data x "$url/b" || status=$?
  else
    curl -s --data x "$url/b" || status=$?
  fi
  posts=$(cat "$folder/posts")
  echo "$way connection: exit status $status, the server has had $posts POSTs"
  [ $way = kept ] && expected="0 2" || expected="52 1"
  [ "$status $posts" = "$expected" ] || right=1
  kill $server
  wait $server 2>/dev/null || true
done
exit $right
