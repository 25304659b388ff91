export npm_config_update_notifier=false npm_config_loglevel=error
mkdir dep app
cat >dep/package.json <<'END'
{"name": "dep", "version": "1.0.0", "main": "index.js", "bin": {"dep": "bin.js"},
 "scripts": {"install": "node install.js", "postinstall": "echo post >post"}}
END
echo 'require("fs").writeFileSync("installed.js", "module.exports = 42")' >dep/install.js
echo 'module.exports = require("./installed.js")' >dep/index.js
printf '#!/usr/bin/env node\nconsole.log("bin", require("./index.js"))\n' >dep/bin.js
tar --sort=name --mtime=2024-01-01 --transform 's/^dep/package/' -czf dep.tgz dep
cd app
echo '{"name": "app", "version": "1.0.0"}' >package.json
npm install --offline --no-audit --no-fund ../dep.tgz >/dev/null
node -p "require('dep')"
node_modules/.bin/dep
cat node_modules/dep/post
