cat >main.js <<'END'
const { Worker, isMainThread, parentPort, workerData } = require("worker_threads");
const fs = require("fs"), os = require("os"), child = require("child_process");
if (isMainThread) {
  const shared = new SharedArrayBuffer(4);
  let left = 2;
  for (let i = 0; i < 2; i++) new Worker(__filename, { workerData: shared }).on("message", () => {
    if (--left) return;
    console.log(new Int32Array(shared)[0]);
    fs.writeFileSync("out", child.execSync("echo from a child"));
    fs.watch(".", { persistent: false }).close();
    const f = child.fork(__filename.replace("main", "forked"));
    f.on("message", m => { console.log(m); f.disconnect(); });
  });
} else { Atomics.add(new Int32Array(workerData), 0, 1); parentPort.postMessage("done"); }
END
echo 'process.send("from a fork")' >forked.js
node main.js
