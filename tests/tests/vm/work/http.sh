echo served >page
python3 -u -m http.server --bind 127.0.0.1 0 >log 2>&1 &
until port=$(grep -o 'port [0-9]*' log | cut -d' ' -f2) && test -n "$port"; do sleep 0.2; done
curl -s --max-time 60 "http://127.0.0.1:$port/page"
curl -s --max-time 60 "http://localhost:$port/page"
kill $!
wait $! 2>/dev/null || true
rm log
python3 - <<'END'
import asyncio, socket
async def main():
    async def serve(reader, writer):
        writer.write((await reader.readline()).upper()); await writer.drain(); writer.close()
    for host in "127.0.0.1", "::1":
        server = await asyncio.start_server(serve, host)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"over tcp\n"); print(await reader.readline()); writer.close()
        server.close()
asyncio.run(main())
for family, host in (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"):
    a, b = socket.socket(family, socket.SOCK_DGRAM), socket.socket(family, socket.SOCK_DGRAM)
    a.bind((host, 0)); b.sendto(b"over udp", a.getsockname()); data, who = a.recvfrom(16)
    a.sendto(data[::-1], who); print(b.recv(16))
s = socket.socket(); s.listen(); c = socket.create_connection(("127.0.0.1", s.getsockname()[1])); print(c.getpeername()[0])
END
