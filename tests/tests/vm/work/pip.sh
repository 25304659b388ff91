mkdir -p package/thing
echo 'answer = 42' >package/thing/__init__.py
cat >package/setup.py <<'END'
from setuptools import setup
open("ran-by-setup", "w").write("x")
setup(name="thing", version="1.0", packages=["thing"], entry_points={"console_scripts": ["thing=thing:__name__.__len__"]})
END
python3 -m venv --system-site-packages --without-pip v
v/bin/python -m pip install -q --no-index --no-build-isolation --no-deps --disable-pip-version-check ./package 2>&1
cd /
"$OLDPWD"/v/bin/python -c 'import thing; print(thing.answer, thing.__file__)'
