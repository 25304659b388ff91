//! What each client does, and what it prints when that came to pass.

use super::{Client, Knows};

pub(crate) const CLIENTS: &[Client] = &[
    Client {
        name: "curl",
        does: "http, https, an upload in chunks",
        allow: &["echo.example"],
        script: r"
            curl -sS --fail http://echo.example/plain
            curl -sS --fail -d body https://echo.example/tls
            yes | head -c 300000 | curl -sS --fail -T - https://echo.example/up -o up
            wc -c <up
            curl -sS --fail https://echo.example/bytes/5000000 | wc -c",
        says: &[
            r#""path": "/plain""#,
            r#""path": "/tls""#,
            r#""body": "body""#,
            "5000000",
        ],
        knows: Knows::Proxies,
    },
    Client {
        name: "curl, HTTP/2",
        does: "https",
        allow: &["h2.example"],
        script: r"
            curl -sS --fail --http2 -d body https://h2.example/tls",
        says: &[
            r#"{"version":"2.0","method":"POST","path":"/tls","authority":"h2.example","body":"body"}"#,
        ],
        knows: Knows::Proxies,
    },
    Client {
        name: "wget",
        does: "http, https",
        allow: &["echo.example"],
        script: r"
            wget -q -O - http://echo.example/plain
            wget -q -O - --post-data=body https://echo.example/tls",
        says: &[
            r#""path": "/plain""#,
            r#""path": "/tls""#,
            r#""body": "body""#,
        ],
        knows: Knows::Proxies,
    },
    Client {
        name: "git over https",
        does: "clone, fetch, push",
        allow: &["git.example"],
        script: r#"
            git clone -q https://git.example/leaf.git leaf && cd leaf && cat says
            git switch -q -c "branch-$NUMBER" && git commit -q --allow-empty -m empty
            git push -q origin HEAD
            git fetch -q origin "branch-$NUMBER" && git log -1 --format='fetched %s' FETCH_HEAD"#,
        says: &["leaf works", "fetched empty"],
        knows: Knows::Proxies,
    },
    Client {
        name: "git over ssh",
        does: "clone, fetch, push",
        allow: &["git.example:22"],
        script: r#"
            git clone -q git.example:/srv/git/leaf.git leaf && cd leaf && cat says
            git switch -q -c "branch-$NUMBER" && git commit -q --allow-empty -m empty
            git push -q origin HEAD
            git fetch -q origin "branch-$NUMBER" && git log -1 --format='fetched %s' FETCH_HEAD"#,
        says: &["leaf works", "fetched empty"],
        knows: Knows::Nothing,
    },
    Client {
        name: "ssh",
        does: "a command",
        allow: &["git.example:22"],
        script: r"
            echo passed on | $GIT_SSH_COMMAND git.example 'echo there; cat'",
        says: &["there", "passed on"],
        knows: Knows::Nothing,
    },
    Client {
        name: "npm",
        does: "install",
        allow: &["npm.example"],
        script: r#"
            npm install --loglevel=error leaf
            node -e 'console.log(require("./node_modules/leaf"))'"#,
        says: &["leaf works"],
        knows: Knows::Proxies,
    },
    Client {
        name: "pip",
        does: "install",
        allow: &["pypi.example"],
        script: r"
            /usr/bin/python3 -m pip install -q --no-cache-dir --target installed leaf
            PYTHONPATH=installed /usr/bin/python3 -c 'import leaf; print(leaf.SAYS)'",
        says: &["leaf works"],
        knows: Knows::Proxies,
    },
    Client {
        name: "cargo",
        does: "fetch from a sparse registry, build",
        allow: &["crates.example"],
        script: r#"
            cargo init -q --vcs none --name work .
            cargo add -q leaf --registry world
            echo 'fn main() { println!("{}", leaf::SAYS) }' >src/main.rs
            cargo fetch -q
            cargo run -q --offline"#,
        says: &["leaf works"],
        knows: Knows::Proxies,
    },
    Client {
        name: "go",
        does: "get, run",
        allow: &["go.example"],
        script: r#"
            go mod init work && go get go.example/leaf@v1.0.0
            printf '%s\n' 'package main' 'import "go.example/leaf"' \
                'func main() { println(leaf.Says) }' >main.go
            go run . 2>&1"#,
        says: &["leaf works"],
        knows: Knows::Proxies,
    },
    Client {
        name: "apt-get",
        does: "update, install",
        allow: &["apt.example"],
        script: r"
            mkdir -p root/var/lib/dpkg/info root/var/lib/apt/lists/partial \
                root/var/cache/apt/archives/partial root/var/log/apt root/etc/apt
            touch root/var/lib/dpkg/status
            echo 'deb [trusted=yes] https://apt.example/debian ./' >root/etc/apt/sources.list
            apt-get -q update && apt-get -q -y install leaf && cat root/usr/share/leaf/says",
        says: &["leaf works"],
        knows: Knows::Proxies,
    },
    Client {
        name: "Python urllib",
        does: "http, https",
        allow: &["echo.example"],
        script: r"
            for base in http https; do
                /usr/bin/python3 $CLIENTS/fetch.py urllib $base://echo.example
            done",
        says: FETCHED,
        knows: Knows::Proxies,
    },
    Client {
        name: "Python requests",
        does: "http, https",
        allow: &["echo.example"],
        script: r"
            for base in http https; do
                /usr/bin/python3 $CLIENTS/fetch.py requests $base://echo.example
            done",
        says: FETCHED,
        knows: Knows::Proxies,
    },
    Client {
        name: "Python httpx",
        does: "http, https",
        allow: &["echo.example"],
        script: r"
            for base in http https; do
                /usr/bin/python3 $CLIENTS/fetch.py httpx $base://echo.example
            done",
        says: FETCHED,
        knows: Knows::Proxies,
    },
    Client {
        name: "Python aiohttp",
        does: "http, https",
        allow: &["echo.example"],
        script: r"
            for base in http https; do
                /usr/bin/python3 $CLIENTS/fetch.py aiohttp $base://echo.example
            done",
        says: FETCHED,
        knows: Knows::Proxies,
    },
    Client {
        name: "node fetch",
        does: "http, https",
        allow: &["echo.example"],
        script: r"
            for base in http https; do
                node $CLIENTS/fetch.js fetch $base://echo.example
            done",
        says: FETCHED,
        // From node 22.21 and 24.5 on it does.
        knows: Knows::Nothing,
    },
    Client {
        name: "node http and https",
        does: "http, https",
        allow: &["echo.example"],
        script: r"
            for base in http https; do
                node $CLIENTS/fetch.js http $base://echo.example
            done",
        says: FETCHED,
        knows: Knows::Nothing,
    },
    Client {
        name: "node ws",
        does: "WebSocket over http, https",
        allow: &["ws.example"],
        script: r"
            for base in ws wss; do node $CLIENTS/fetch.js ws $base://ws.example; done",
        says: &["came back: a message\ncame back: a message"],
        knows: Knows::Nothing,
    },
    Client {
        name: "Java HttpClient",
        does: "http, https",
        allow: &["echo.example"],
        script: r"
            java $CLIENTS/Fetch.java http://echo.example https://echo.example",
        says: &[
            r#"http://echo.example {"method": "POST", "path": "/posted""#,
            r#"https://echo.example {"method": "POST", "path": "/posted""#,
            r#""body": "body""#,
        ],
        knows: Knows::Proxies,
    },
    Client {
        name: "a client whose server speaks first",
        does: "a connection",
        allow: &["db.example:5432"],
        script: r"
            /usr/bin/python3 $CLIENTS/greet.py db.example 5432",
        says: &["220 ready\n250 hello"],
        knows: Knows::Nothing,
    },
];

const FETCHED: &[&str] = &[
    "POST http://echo.example/posted body",
    "POST https://echo.example/posted body",
];
