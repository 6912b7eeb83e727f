#!/usr/bin/python3
"""No-op jobs a second of Celery and RQ on a Redis of their own: the peers of bench_dispatch.

    /usr/bin/python3 tests/bench/bench_dispatch_peers.py [jobs, 4000] [workers, 2] [rounds, 3]

From the first job enqueued to the last one done, medians. Both are Debian's (python3-celery,
python3-rq, redis-server), as they come but for what makes Celery faster: no results kept, 64
jobs prefetched by a process. Neither keeps a record of what was done, and Celery acknowledges
before it runs; a job of kvmill is a row with an attempt, committed durably.
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
URL = os.environ.get("KVM_PEER_REDIS", "")
if URL:
    import celery

    app = celery.Celery("peers", broker=URL)
    app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=64, worker_send_task_events=False)

    @app.task
    def celery_noop(last):
        if last:
            done(last)


def done(key):
    import redis

    redis.Redis(unix_socket_path=os.environ["KVM_PEER_SOCKET"]).set(key, 1)


def rq_noop(last):
    if last:
        done(last)


def wait_for(server, key):
    while not server.exists(key):
        time.sleep(0.002)


def rate(server, key, jobs, enqueue):
    start = time.monotonic()
    for i in range(jobs):
        enqueue(key if i == jobs - 1 else "")
    wait_for(server, key)
    return jobs / (time.monotonic() - start)


def workers(name, command, count, env, folder):
    if name == "RQ":  # its workers fork for every job and import this file there: not Celery as well
        env = {k: v for k, v in env.items() if k != "KVM_PEER_REDIS"}
    log = open(os.path.join(folder, "log"), "ab")
    return [subprocess.Popen(command, env=env, cwd=HERE, stdout=log, stderr=log) for _ in range(count)]


def measure(folder, jobs, count, rounds):
    import redis
    import rq

    socket = os.path.join(folder, "redis.sock")
    server = redis.Redis(unix_socket_path=socket)
    env = dict(os.environ, KVM_PEER_REDIS="redis+socket://" + socket, KVM_PEER_SOCKET=socket, C_FORCE_ROOT="1",
               PYTHONPATH=HERE)
    os.environ.update({k: env[k] for k in ("KVM_PEER_REDIS", "KVM_PEER_SOCKET")})
    sys.path.insert(0, HERE)
    global URL
    URL = env["KVM_PEER_REDIS"]
    import bench_dispatch_peers as peers

    queue = rq.Queue(connection=server)
    cases = {
        "Celery": ([sys.executable, "-m", "celery", "-A", "bench_dispatch_peers", "worker", "-c", str(count), "-l",
                    "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"], 1,
                   lambda last: peers.celery_noop.delay(last)),
        "RQ": (["rq", "worker", "-u", "unix://" + socket, "-q"], count,
               lambda last: queue.enqueue(peers.rq_noop, last)),
    }
    for name, (command, processes, enqueue) in cases.items():
        running = workers(name, command, processes, env, folder)
        try:
            enqueue("warm " + name)
            wait_for(server, "warm " + name)
            n = jobs if name == "Celery" else jobs // 4
            rates = [rate(server, "%s %d" % (name, r), n, enqueue) for r in range(rounds)]
        finally:
            for p in running:
                p.terminate()
            for p in running:
                p.wait()
        print("%-7s %7.0f jobs/s (%.0f to %.0f; %d jobs, %d processes)"
              % (name, statistics.median(rates), min(rates), max(rates), n, count), flush=True)


def main():
    jobs, count, rounds = (int(sys.argv[i]) if len(sys.argv) > i else d for i, d in ((1, 4000), (2, 2), (3, 3)))
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", folder + "/redis.sock", "--save", "",
                                   "--dir", folder], stdout=subprocess.DEVNULL)
        try:
            while not os.path.exists(folder + "/redis.sock"):
                time.sleep(0.01)
            measure(folder, jobs, count, rounds)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
