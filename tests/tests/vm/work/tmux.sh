export TERM=xterm
tmux -S "$PWD/socket" -f /dev/null new-session -d -x 80 -y 24 'echo inside >made; sleep 100'
while ! test -s made; do sleep 0.2; done
tmux -S "$PWD/socket" list-sessions -F '#{session_name} #{session_windows}'
tmux -S "$PWD/socket" new-window -d 'echo second >second; sleep 100'
while ! test -s second; do sleep 0.2; done
tmux -S "$PWD/socket" kill-server
while test -S socket && tmux -S "$PWD/socket" list-sessions >/dev/null 2>&1; do sleep 0.2; done
rm -f socket
cat made second
