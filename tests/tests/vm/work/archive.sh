mkdir -p src/d
echo one >src/f
ln src/f src/hard
ln -s f src/soft
ln -s ../nowhere src/d/broken
mkfifo src/pipe
chmod 700 src/d
tar -cf a.tar src
mkdir one two
tar -xf a.tar -C one
tar -czf a.tar.gz src
tar -xzf a.tar.gz -C two --preserve-permissions
diff -r --no-dereference one/src/f two/src/f
tar -tf a.tar | sort
xz -k src/f -c | xz -d
python3 - <<'END'
import shutil
shutil.make_archive("z", "zip", "src", "d"); shutil.copytree("src/d", "copied", symlinks=True); shutil.move("copied", "moved")
END
rm z.zip
