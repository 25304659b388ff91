export GIT_AUTHOR_DATE=2024-01-01T00:00:00Z GIT_COMMITTER_DATE=2024-01-01T00:00:00Z
git init -q a
cd a
echo one >f
git add f
git commit -qm one
echo two >>f
git commit -qam two
git clone -q . ../b
cd ../b
git checkout -qb side HEAD~
echo x >g
git add g
git commit -qm side
git rebase -q main
git log --format='%H %s'
git worktree add -q ../c HEAD~ 2>&1
git -C ../c status --short --branch
echo z >>f
git stash -q
git stash list
git stash pop -q
git checkout -q f
git fetch -q origin
git push -q origin side 2>&1
git config user.nickname x
git gc -q
git fsck
git status --short
