// Gets and posts with node's `fetch`, its `http` and `https`, or the package
// `ws`; with `TOKEN`, if there is one.
"use strict";
const [library, base] = process.argv.slice(2);
const token = process.env.TOKEN;
const headers = token ? { authorization: `Bearer ${token}` } : {};

function show(answer) {
  console.log(answer.method, base + answer.path, answer.body);
}

async function viaFetch() {
  const got = await fetch(`${base}/got`, { headers });
  if (!got.ok) throw new Error(`status ${got.status}`);
  await got.text();
  const posted = await fetch(`${base}/posted`, {
    method: "POST",
    body: "body",
    headers,
  });
  show(await posted.json());
}

function viaHttp() {
  const library = require(base.startsWith("https:") ? "node:https" : "node:http");
  const request = library.request(
    `${base}/posted`,
    { method: "POST", headers },
    (response) => {
      if (response.statusCode !== 200) throw new Error(`${response.statusCode}`);
      let text = "";
      response.on("data", (chunk) => (text += chunk));
      response.on("end", () => show(JSON.parse(text)));
    },
  );
  request.end("body");
}

function viaWs() {
  const { WebSocket } = require("ws");
  const socket = new WebSocket(`${base}/echo`, { headers });
  socket.on("open", () => socket.send("a message"));
  socket.on("message", (message) => {
    console.log("came back:", String(message));
    socket.close();
  });
  socket.on("error", (error) => {
    throw error;
  });
}

({ fetch: viaFetch, http: viaHttp, ws: viaWs })[library]();
