cat >test_all.py <<'END'
import asyncio, multiprocessing, os, subprocess, sys, tempfile
from concurrent.futures import ProcessPoolExecutor

def double(x): return 2 * x

def test_pool():
    with multiprocessing.Pool(2) as pool: assert pool.map(double, range(4)) == [0, 2, 4, 6]

def test_executor():
    with ProcessPoolExecutor(2) as pool: assert list(pool.map(double, range(2))) == [0, 2]

def test_asyncio():
    async def main():
        p = await asyncio.create_subprocess_exec("echo", "hi", stdout=asyncio.subprocess.PIPE)
        out, _ = await p.communicate()
        return out, await asyncio.to_thread(double, 2)
    assert asyncio.run(main()) == (b"hi\n", 4)

def test_unix_socket(tmp_path):
    async def main():
        async def serve(reader, writer):
            writer.write(await reader.readline()); await writer.drain(); writer.close()
        server = await asyncio.start_unix_server(serve, str(tmp_path / "s"))
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(b"x\n")
        return await reader.readline()
    assert asyncio.run(main()) == b"x\n"

def test_temporary(tmp_path):
    (tmp_path / "f").write_text("x")
    assert tempfile.gettempdir() and os.access(tmp_path, os.W_OK)
    assert subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True).stdout == b"1\n"
END
python3 -m pytest -q -p no:cacheprovider test_all.py 2>&1 | sed 's/ in [0-9.]*s.*//'
