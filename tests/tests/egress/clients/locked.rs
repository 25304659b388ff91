//! Clients that send a token, in the way that is each one's own.

use super::Locked;

pub(crate) const LOCKED: &[Locked] = &[
    Locked {
        name: "curl",
        host: "api.example",
        scheme: r#"scheme = "bearer""#,
        script: r#"
            curl -sS --fail -H "Authorization: Bearer $TOKEN" -d body https://api.example/tls
            yes | head -c 300000 | curl -sS --fail -H "Authorization: Bearer $TOKEN" \
                -T - https://api.example/up -o up
            wc -c <up
            curl -sS --fail -H "Authorization: Bearer $TOKEN" https://api.example/bytes/5000000 | wc -c"#,
        says: &[r#""path": "/tls""#, r#""body": "body""#, "5000000"],
    },
    Locked {
        name: "curl, HTTP/2",
        host: "api2.example",
        scheme: r#"scheme = "bearer""#,
        script: r#"
            curl -sS --fail --http2 -H "Authorization: Bearer $TOKEN" -d body https://api2.example/tls"#,
        says: &[
            r#"{"version":"2.0","method":"POST","path":"/tls","authority":"api2.example","body":"body"}"#,
        ],
    },
    Locked {
        name: "git over https",
        host: "git.locked.example",
        scheme: r#"scheme = "basic""#,
        script: r#"
            export GIT_TERMINAL_PROMPT=0
            git config --global credential.helper \
                '!f() { echo username=anybody; echo "password=$TOKEN"; }; f'
            git clone -q https://git.locked.example/leaf.git leaf && cd leaf && cat says
            git switch -q -c "branch-$NUMBER" && git commit -q --allow-empty -m empty
            git push -q origin HEAD
            git fetch -q origin "branch-$NUMBER" && git log -1 --format='fetched %s' FETCH_HEAD"#,
        says: &["leaf works", "fetched empty"],
    },
    Locked {
        name: "npm",
        host: "npm.locked.example",
        scheme: r#"scheme = "bearer""#,
        script: r#"
            export npm_config_registry=https://npm.locked.example/
            echo '//npm.locked.example/:_authToken=${TOKEN}' >.npmrc
            npm install --loglevel=error leaf
            node -e 'console.log(require("./node_modules/leaf"))'"#,
        says: &["leaf works"],
    },
    Locked {
        name: "pip",
        host: "pypi.locked.example",
        scheme: r#"scheme = "basic""#,
        script: r#"
            export PIP_INDEX_URL="https://anybody:$TOKEN@pypi.locked.example/simple/"
            export PIP_NO_INPUT=1
            /usr/bin/python3 -m pip install -q --no-cache-dir --target installed leaf
            PYTHONPATH=installed /usr/bin/python3 -c 'import leaf; print(leaf.SAYS)'"#,
        says: &["leaf works"],
    },
    Locked {
        name: "cargo",
        host: "crates.locked.example",
        scheme: r#"scheme = "header"
header = "authorization""#,
        script: r#"
            export CARGO_REGISTRIES_WORLD_INDEX=sparse+https://crates.locked.example/index/
            export CARGO_REGISTRIES_WORLD_CREDENTIAL_PROVIDER=cargo:token
            export CARGO_REGISTRIES_WORLD_TOKEN="$TOKEN"
            cargo init -q --vcs none --name work .
            cargo add -q leaf --registry world
            echo 'fn main() { println!("{}", leaf::SAYS) }' >src/main.rs
            cargo fetch -q
            cargo run -q --offline"#,
        says: &["leaf works"],
    },
    Locked {
        name: "go",
        host: "go.locked.example",
        scheme: r#"scheme = "basic""#,
        script: r#"
            export GOPROXY="https://anybody:$TOKEN@go.locked.example"
            go mod init work && go get go.example/leaf@v1.0.0
            printf '%s\n' 'package main' 'import "go.example/leaf"' \
                'func main() { println(leaf.Says) }' >main.go
            go run . 2>&1"#,
        says: &["leaf works"],
    },
    Locked {
        name: "Python urllib",
        host: "api.example",
        scheme: r#"scheme = "bearer""#,
        script: r"
            /usr/bin/python3 $CLIENTS/fetch.py urllib https://api.example",
        says: FETCHED,
    },
    Locked {
        name: "Python requests",
        host: "api.example",
        scheme: r#"scheme = "bearer""#,
        script: r"
            /usr/bin/python3 $CLIENTS/fetch.py requests https://api.example",
        says: FETCHED,
    },
    Locked {
        name: "Python httpx",
        host: "api.example",
        scheme: r#"scheme = "bearer""#,
        script: r"
            /usr/bin/python3 $CLIENTS/fetch.py httpx https://api.example",
        says: FETCHED,
    },
    Locked {
        name: "Python aiohttp",
        host: "api.example",
        scheme: r#"scheme = "bearer""#,
        script: r"
            /usr/bin/python3 $CLIENTS/fetch.py aiohttp https://api.example",
        says: FETCHED,
    },
    Locked {
        name: "node fetch",
        host: "api.example",
        scheme: r#"scheme = "bearer""#,
        script: r"
            node $CLIENTS/fetch.js fetch https://api.example",
        says: FETCHED,
    },
    Locked {
        name: "node http and https",
        host: "api.example",
        scheme: r#"scheme = "bearer""#,
        script: r"
            node $CLIENTS/fetch.js http https://api.example",
        says: FETCHED,
    },
    Locked {
        name: "node ws",
        host: "api.example",
        scheme: r#"scheme = "bearer""#,
        script: r"
            node $CLIENTS/fetch.js ws wss://api.example",
        says: &["came back: a message"],
    },
];

const FETCHED: &[&str] = &["POST https://api.example/posted body"];
