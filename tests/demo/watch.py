"""Watches the daemon's events through a client generated from its .proto.

Writes `watching` once it will miss nothing, then every denial as a line of
JSON, until COUNT of them have come: watch.py STUBS HOST COUNT
"""

import json
import sys

stubs, host, count = sys.argv[1:]
sys.path.insert(0, stubs)

import grpc  # noqa: E402
from sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc  # noqa: E402


def name(enum, number, prefix):
    return enum.Name(number).removeprefix(prefix).lower()


def main():
    # Without an authority of its own gRPC makes one of the socket's path.
    options = [("grpc.default_authority", "sandboxd")]
    with grpc.insecure_channel(host, options=options) as channel:
        service = sandbox_pb2_grpc.SandboxesStub(channel)
        left = int(count)
        for response in service.WatchEvents(sandbox_pb2.WatchEventsRequest()):
            if response.WhichOneof("response") == "watching":
                print("watching", flush=True)
                if left == 0:
                    return
                continue
            if response.WhichOneof("response") != "denial":
                continue
            denial = response.denial
            event = {
                "type": "denial",
                "sandbox_id": denial.sandbox_id,
                "right": name(sandbox_pb2.Right, denial.right, "RIGHT_"),
                "operation": denial.operation,
                "object_display": denial.object_display,
                "rule": denial.rule,
                "errno": denial.errno,
                "verdict": name(sandbox_pb2.Verdict, denial.verdict, "VERDICT_"),
                "count": denial.count,
            }
            print(json.dumps(event), flush=True)
            left -= 1
            if left == 0:
                return


main()
