// An echo server that speaks HTTP/2: over TLS on 443 (HTTP/1.1 too) and without
// TLS, by prior knowledge, on 80.
"use strict";
const fs = require("node:fs");
const http2 = require("node:http2");

const [address, tls] = process.argv.slice(2);

function answer(request, response) {
  const chunks = [];
  request.on("data", (chunk) => chunks.push(chunk));
  request.on("end", () => {
    response.setHeader("content-type", "application/json");
    response.end(
      JSON.stringify({
        version: request.httpVersion,
        method: request.method,
        path: request.url,
        authority: request.headers[":authority"] ?? request.headers.host,
        body: Buffer.concat(chunks).toString(),
      }),
    );
  });
}

const secure = http2.createSecureServer(
  {
    allowHTTP1: true,
    cert: fs.readFileSync(`${tls}/server.pem`),
    key: fs.readFileSync(`${tls}/server.key`),
  },
  answer,
);
const plain = http2.createServer(answer);
secure.listen(443, address, () =>
  plain.listen(80, address, () => console.log("ready")),
);
