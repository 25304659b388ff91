// Requests over HTTP/2, on one connection, with headers that no client would send.
// Arguments: an origin, and a list of objects of headers in JSON, in which `@TOKEN@`
// is that variable's value. Prints each status and rule.
"use strict";
const http2 = require("node:http2");
const [origin, list] = process.argv.slice(2);
const session = http2.connect(origin);
session.on("error", (error) => console.log("session", error.code));

async function ask(headers) {
  await new Promise((done) => {
    let request;
    try {
      request = session.request(headers);
    } catch (error) {
      console.log("not sent", error.code);
      return done();
    }
    request.on("response", (answer) =>
      console.log(answer[":status"], answer["x-sandbox-denied"] ?? ""),
    );
    request.on("error", (error) => console.log("stream", error.code));
    request.on("close", done);
    request.resume();
    request.end();
  });
}

(async () => {
  const text = list.replaceAll("@TOKEN@", process.env.TOKEN);
  for (const headers of JSON.parse(text)) await ask(headers);
  session.close();
})();
