// An echo server that speaks HTTP/2: over TLS on 443 (HTTP/1.1 too) and without
// TLS, by prior knowledge, on 80. As `api2.example` it demands a token.
"use strict";
const fs = require("node:fs");
const http2 = require("node:http2");

const [address, root] = process.argv.slice(2);

function known(request) {
  const tokens = fs.readFileSync(`${root}/tokens`, "utf8").split(/\s+/);
  const value = request.headers.authorization ?? "";
  return tokens.find((it) => it && value === `Bearer ${it}`) ?? null;
}

function answer(request, response) {
  const authority = request.headers[":authority"] ?? request.headers.host;
  const host = authority.split(":")[0];
  const token = known(request);
  const chunks = [];
  request.on("data", (chunk) => chunks.push(chunk));
  request.on("end", () => {
    const body = Buffer.concat(chunks);
    const record = {
      kind: "http2",
      host,
      method: request.method,
      path: request.url,
      headers: Object.entries(request.headers),
      body: body.toString("base64"),
      version: request.httpVersion,
      known: token,
    };
    // Whole lines, one write each: others write to it too.
    fs.appendFileSync(`${root}/records.jsonl`, `${JSON.stringify(record)}\n`);
    response.setHeader("content-type", "application/json");
    if (host === "api2.example" && !token) response.statusCode = 401;
    response.end(
      JSON.stringify({
        version: request.httpVersion,
        method: request.method,
        path: request.url,
        authority,
        body: body.toString(),
      }),
    );
  });
}

const secure = http2.createSecureServer(
  {
    allowHTTP1: true,
    cert: fs.readFileSync(`${root}/tls/server.pem`),
    key: fs.readFileSync(`${root}/tls/server.key`),
  },
  answer,
);
const plain = http2.createServer(answer);
secure.listen(443, address, () =>
  plain.listen(80, address, () => console.log("ready")),
);
