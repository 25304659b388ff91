"""Clients that ask for ever. Arguments: how many, for how many seconds, a prefix
for paths. Half of them know of the proxy; every fourth request is for a host
that is not allowed. Prints how often each thing happened, in JSON; `right` is an
answer of the right server, and `late` is how many of those came in the last
second."""

import collections
import errno
import http.client
import json
import socket
import sys
import threading
import time

clients, seconds, prefix = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
end = time.monotonic() + seconds
seen = collections.Counter()
lock = threading.Lock()


def ask(knows, host, path):
    if knows:
        connection = http.client.HTTPConnection("198.18.0.1", 3128, timeout=10)
        target = f"http://{host}{path}"
    else:
        connection = http.client.HTTPConnection(host, timeout=10)
        target = path
    try:
        connection.request("GET", target, headers={"Host": host})
        answer = connection.getresponse()
        body = answer.read()
    except socket.gaierror as error:
        return {socket.EAI_AGAIN: "no name server", socket.EAI_NONAME: "no name"}.get(
            error.errno, str(error)
        )
    except http.client.RemoteDisconnected:
        return "closed"
    except http.client.IncompleteRead:
        return "cut off"
    except ConnectionResetError:
        return "reset"
    except BrokenPipeError:
        return "reset"
    except OSError as error:
        return errno.errorcode.get(error.errno, repr(error))
    finally:
        connection.close()
    if answer.status != 200:
        return f"{answer.status}"
    said = json.loads(body)
    if said["path"] != path or ["Host", host] not in said["headers"]:
        return f"a wrong answer: {said}"
    return "right"


def work(number):
    count = 0
    while time.monotonic() < end:
        count += 1
        host = "other.example" if count % 4 == 0 else "echo.example"
        what = ask(number % 2, host, f"/{prefix}-{number}-{count}")
        with lock:
            seen[f"{host}: {what}"] += 1
            if what == "right" and time.monotonic() > end - 1:
                seen["late"] += 1
        if what not in ("right", "403", "no name"):
            time.sleep(0.02)


threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(seen))
