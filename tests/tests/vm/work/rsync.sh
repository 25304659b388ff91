mkdir -p src/a src/b
for i in 1 2 3; do echo $i >src/a/$i; done
ln src/a/1 src/b/hard
ln -s a/2 src/soft
rsync -aH src/ dst/
rm src/a/3
rsync -aH --delete src/ dst/
rsync -a --link-dest="$PWD/dst" src/ linked/
