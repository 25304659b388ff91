ssh-keygen -q -t ed25519 -N '' -C me -f key
ssh-keygen -y -f key | cut -d' ' -f1
echo data >message
ssh-keygen -q -Y sign -f key -n file message 2>/dev/null
test -s message.sig && rm message.sig
stat -c %a key
