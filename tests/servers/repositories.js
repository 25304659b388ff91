// Repositories of git behind a token, over HTTP/1.1 and HTTP/2 in TLS: git's own
// CGI program, and nothing of a body is kept. What is not of git is told back to
// whoever asks, token or not.
//
// Paths are read as the most lenient servers do: decoded, without parameters, in
// small letters, and `..` leads upwards.
"use strict";
const { spawn } = require("node:child_process");
const fs = require("node:fs");
const http2 = require("node:http2");
const { posix } = require("node:path");

const [address, root] = process.argv.slice(2);
const OF_GIT =
  /\/(info\/refs|git-(upload|receive)-pack|git-upload-archive|head|objects\/([0-9a-f]{2}|info|pack)\/.*)$/;

function known(authorization) {
  const tokens = fs.readFileSync(`${root}/tokens`, "utf8").split(/\s+/);
  const [scheme, rest = ""] = authorization.split(" ");
  const basic = scheme.toLowerCase() === "basic";
  const brought = basic ? Buffer.from(rest, "base64").toString().split(":") : [rest];
  return tokens.find((it) => it && brought.includes(it)) ?? null;
}

function lenient(path) {
  const plain = decodeURIComponent(path).replace(/;[^/]*/g, "");
  return posix.normalize(plain).toLowerCase();
}

function answer(request, response) {
  const [path, query = ""] = request.url.split("?", 2);
  const headers = request.headers;
  const authorization = headers.authorization ?? "";
  const token = known(authorization);
  const host = (headers[":authority"] ?? headers.host ?? "").split(":")[0];
  const record = {
    kind: "repositories",
    host,
    method: request.method,
    path: request.url,
    authorization,
    version: request.httpVersion,
    encoding: headers["transfer-encoding"] ?? "",
    protocol: headers["git-protocol"] ?? "",
    known: token,
  };
  // Whole lines, one write each: others write to it too.
  fs.appendFileSync(`${root}/records.jsonl`, `${JSON.stringify(record)}\n`);
  if (!OF_GIT.test(lenient(path))) {
    const told = { path: request.url, known: Boolean(token), authorization };
    say(request, response, 200, JSON.stringify(told));
    return;
  }
  if (!token) {
    // What makes git ask for a password.
    response.setHeader("www-authenticate", 'Basic realm="locked"');
    say(request, response, 401, "who are you?\n");
    return;
  }
  const method = headers["x-http-method-override"] ?? request.method;
  serve(request, response, {
    PATH: process.env.PATH,
    GIT_PROJECT_ROOT: `${root}/repositories`,
    GIT_HTTP_EXPORT_ALL: "1",
    GIT_PROTOCOL: headers["git-protocol"] ?? "",
    REMOTE_USER: "somebody",
    REMOTE_ADDR: "203.0.113.1",
    REQUEST_METHOD: method,
    PATH_INFO: lenient(path),
    QUERY_STRING: query,
    CONTENT_TYPE: headers["content-type"] ?? "",
    CONTENT_LENGTH: headers["content-length"] ?? "",
    HTTP_CONTENT_ENCODING: headers["content-encoding"] ?? "",
  });
}

// Once all was said: over HTTP/2, some of what comes earlier is lost.
function say(request, response, status, text) {
  request.resume();
  request.on("end", () => {
    response.statusCode = status;
    response.end(text);
  });
}

function serve(request, response, env) {
  const child = spawn("git", ["http-backend"], { env, stdio: ["pipe", "pipe", "ignore"] });
  request.on("data", (chunk) => {
    if (!child.stdin.write(chunk)) {
      request.pause();
      child.stdin.once("drain", () => request.resume());
    }
  });
  // Also where the client is gone: git has to see by itself that it has not all.
  request.on("close", () => child.stdin.end());
  request.on("end", () => child.stdin.end());
  child.stdin.on("error", () => request.resume());
  let head = Buffer.alloc(0);
  const begin = (chunk) => {
    head = Buffer.concat([head, chunk]);
    const end = head.indexOf("\r\n\r\n");
    if (end < 0) return;
    child.stdout.off("data", begin);
    child.stdout.pause();
    for (const line of head.subarray(0, end).toString().split("\r\n")) {
      const [name, value] = line.split(": ", 2);
      if (name === "Status") response.statusCode = Number.parseInt(value, 10);
      else response.setHeader(name, value);
    }
    response.write(head.subarray(end + 4));
    child.stdout.pipe(response);
  };
  child.stdout.on("data", begin);
  child.on("close", () => response.end());
}

const server = http2.createSecureServer(
  {
    allowHTTP1: true,
    cert: fs.readFileSync(`${root}/tls/server.pem`),
    key: fs.readFileSync(`${root}/tls/server.key`),
  },
  answer,
);
server.listen(443, address, () => console.log("ready"));
