"""The sidecar under test, and the server of its store: processes of their own.

As a program it starts the server of a store (`processes.py etcd`), prints its URL in one line, and ends it when its input ends.
"""

import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

START_LIMIT = 60.0  # seconds
STOP_LIMIT = 60.0  # seconds
ROOT = Path(__file__).resolve().parents[3]


class NotStarted(Exception):
    """A process that the suite needs did not start."""


class Sidecar:
    """A running sidecar on a socket of its own. `settings` are environment variables without their prefix."""

    def __init__(self, binary, settings, ready=True):
        self.folder = tempfile.mkdtemp(prefix="lsc")  # short, because a socket's path has at most 107 bytes
        self.socket = os.path.join(self.folder, "s.sock")
        self.log = open(os.path.join(self.folder, "log"), "w+", encoding="utf-8")
        clean = {n: v for n, v in os.environ.items() if not n.startswith(("LOCKSIDECAR_", "KUBERNETES_"))}
        environment = {f"LOCKSIDECAR_{name}": value for name, value in settings.items()}
        self.process = subprocess.Popen(
            [binary, "serve"], env={**clean, **environment, "LOCKSIDECAR_SOCKET": self.socket}, stdout=self.log, stderr=self.log
        )
        try:
            self._await("/readyz" if ready else "/v1")
        except BaseException:
            self.stop()
            raise

    def _await(self, path):
        deadline = time.monotonic() + START_LIMIT
        while self._ask(path)[0] != 200:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise NotStarted(f"the sidecar did not become ready; its log:\n{self.tail()}")
            time.sleep(0.01)

    def _ask(self, path):
        asked = subprocess.run(
            ["curl", "-s", "-w", "\n%{http_code}", "--unix-socket", self.socket, f"http://localhost{path}"],
            capture_output=True, text=True,
        )  # fmt: skip
        body, _, status = asked.stdout.rpartition("\n")
        return int(status or 0), body

    def features(self):
        """The features of GET /v1."""
        return json.loads(self._ask("/v1")[1])["features"]

    def tail(self):
        """The end of its log."""
        self.log.flush()
        with open(self.log.name, encoding="utf-8") as log:
            return log.read()[-4000:]

    def alive(self):
        return self.process.poll() is None

    def terminate(self):
        """Asks it to stop, and does not wait."""
        self.process.terminate()

    def stop(self):
        """Ends it at once, and removes its folder."""
        self.process.kill()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Server:
    """A server in a temporary folder. `url` is for STORE_URL."""

    name = prefix = url = ""
    end = signal.SIGKILL  # ends it at once

    def __init__(self, user=None):
        self.user = user
        self.folder = tempfile.mkdtemp(prefix=self.prefix)  # short, like a sidecar's
        self.process = None
        try:
            if self.user:
                shutil.chown(self.folder, self.user)
            command = self._prepare()
            log = open(os.path.join(self.folder, "log"), "w", encoding="utf-8")
            self.process = subprocess.Popen(command, user=self.user, cwd=self.folder, stdout=log, stderr=log)
            self._await()
        except BaseException:
            self.stop()
            raise

    def _prepare(self):
        """Prepares its folder, and returns the command that starts it."""
        raise NotImplementedError

    def _check(self):
        """Returns the command that succeeds when it serves."""
        raise NotImplementedError

    def _await(self):
        deadline = time.monotonic() + START_LIMIT
        while subprocess.run(self._check(), stdout=subprocess.DEVNULL).returncode != 0:
            if self.process.poll() is not None or time.monotonic() > deadline:
                with open(os.path.join(self.folder, "log"), encoding="utf-8") as log:
                    raise NotStarted(f"{self.name} did not start; its log:\n{log.read()[-4000:]}")
            time.sleep(0.02)

    def stop(self):
        """Ends it at once, and removes its folder."""
        if self.process:
            self.process.send_signal(self.end)
            try:
                self.process.wait(STOP_LIMIT)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class PostgresLike(Server):
    """A server that speaks PostgreSQL's protocol, on a Unix socket in its folder only."""

    def __init__(self):
        super().__init__("postgres" if os.getuid() == 0 else None)  # it refuses to run as root

    @property
    def url(self):
        return f"postgres://postgres@/postgres?host={self.folder}"

    def _check(self):
        return ["pg_isready", "-q", "-h", self.folder]


class Postgres(PostgresLike):
    """A PostgreSQL server."""

    name, prefix, end = "PostgreSQL", "lsp", signal.SIGQUIT

    def _prepare(self):
        binaries, data = self._binaries(), os.path.join(self.folder, "data")
        initdb = [os.path.join(binaries, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]
        ran = subprocess.run(initdb, user=self.user, cwd=self.folder, capture_output=True, text=True)
        if ran.returncode != 0:
            raise NotStarted(f"{initdb[0]} ended with {ran.returncode}:\n{ran.stderr}")
        return [os.path.join(binaries, "postgres"), "-D", data, "-k", self.folder, "-c", "listen_addresses=", "-c", "fsync=off"]

    @staticmethod
    def _binaries():
        places = sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True) + os.environ.get("PATH", "").split(":")
        for place in places:
            if os.access(os.path.join(place, "initdb"), os.X_OK) and os.access(os.path.join(place, "postgres"), os.X_OK):
                return place
        raise NotStarted("PostgreSQL's server programs (initdb, postgres) are not installed: apt-get install postgresql")


class PgBouncer(PostgresLike):
    """PgBouncer in transaction mode before a PostgreSQL server, with few connections to it."""

    name, prefix = "PgBouncer", "lsb"

    def __init__(self, server):
        self.server = server
        super().__init__()

    def _prepare(self):
        program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/bin:/opt/homebrew/bin")
        if not program:
            raise NotStarted("PgBouncer is not installed: apt-get install pgbouncer")
        ini = os.path.join(self.folder, "ini")
        with open(ini, "w", encoding="utf-8") as f:
            f.write(
                f"[databases]\n* = host={self.server.folder} user=postgres\n[pgbouncer]\npool_mode = transaction\n"
                f"default_pool_size = 3\nauth_type = any\nlisten_addr =\nlisten_port = 5432\n"
                f"unix_socket_dir = {self.folder}\n"
            )
        return [program, "-q", ini]


class Etcd(Server):
    """One etcd server of `test/deps.sh etcd`, on ports of its own."""

    name, prefix = "etcd", "lse"

    @property
    def url(self):
        return f"etcd://{self.address}/contract"

    def _prepare(self):
        required = re.search(r"go\.etcd\.io/etcd/server/v3 v(\S+)", (ROOT / "test" / "etcd" / "go.mod").read_text("utf-8"))
        program = ROOT / ".bin" / f"etcd-{required[1]}"
        if not program.exists():
            raise NotStarted(f"there is no {program}: `test/deps.sh etcd` builds it")
        self.address, peer = (f"127.0.0.1:{port}" for port in free_ports(2))
        return [
            str(program), "--data-dir=data", "--log-level=error", "--unsafe-no-fsync", "--initial-cluster=default=http://" + peer,
            *(f"--{flag}-client-urls=http://{self.address}" for flag in ("listen", "advertise")),
            *(f"--{flag}-peer-urls=http://{peer}" for flag in ("listen", "initial-advertise")),
        ]  # fmt: skip

    def _check(self):
        return ["curl", "-sf", f"http://{self.address}/health"]


class MySQL(Server):
    """A MariaDB server, or MySQL if LOCKSIDECAR_TEST_MYSQL names a folder with it, on a port of its own, with a database."""

    name, prefix = "MariaDB or MySQL", "lsm"

    def __init__(self):
        super().__init__("mysql" if os.getuid() == 0 else None)  # it refuses to run as root

    @property
    def url(self):
        return f"mysql://locks:secret@{self.address}/locks"

    def _prepare(self):
        data = os.path.join(self.folder, "data")
        small = ["--no-defaults", "--datadir=" + data, "--skip-name-resolve", "--tmpdir=" + self.folder]
        if folder := os.environ.get("LOCKSIDECAR_TEST_MYSQL"):
            server, self.client = os.path.join(folder, "mysqld"), os.path.join(folder, "mysql")
            install = [server, *small, "--initialize-insecure"]
            small += ["--mysqlx=OFF", "--secure-file-priv=NULL"]
        else:
            server, self.client = "mariadbd", "mariadb"
            small.append("--innodb-log-file-size=8M")
            install = ["mariadb-install-db", *small, "--skip-test-db", "--auth-root-authentication-method=normal"]
        for program in (server, install[0], self.client):
            if not shutil.which(program):
                raise NotStarted(f"{program} is not installed: apt-get install mariadb-server")
        ran = subprocess.run(install, user=self.user, cwd=self.folder, capture_output=True, text=True)
        if ran.returncode != 0:
            raise NotStarted(f"{install[0]} ended with {ran.returncode}:\n{ran.stderr}")
        with open(os.path.join(self.folder, "init.sql"), "w", encoding="utf-8") as f:
            f.write("CREATE DATABASE locks;\nCREATE USER locks IDENTIFIED BY 'secret';\nGRANT ALL ON locks.* TO locks;\n")
        port = free_ports(1)[0]
        self.address = f"127.0.0.1:{port}"
        return [
            server, *small, f"--port={port}", "--bind-address=127.0.0.1", f"--socket={self.folder}/s", f"--pid-file={self.folder}/pid",
            f"--init-file={self.folder}/init.sql", "--innodb-flush-log-at-trx-commit=2", "--performance-schema=OFF",
        ]  # fmt: skip

    def _check(self):
        host, port = self.address.split(":")
        client = f"{self.client} --no-defaults -ulocks -psecret -h{host} -P{port} -sNe 'SELECT 1' locks"
        return ["sh", "-c", client + " 2>/dev/null"]


class Redis(Server):
    """A Redis server, on a port of its own."""

    name, prefix = "Redis", "lsr"

    @property
    def url(self):
        return f"redis://{self.address}"

    def _prepare(self):
        for program in ("redis-server", "redis-cli"):
            if not shutil.which(program):
                raise NotStarted("Redis is not installed: apt-get install redis-server redis-tools")
        self.port = str(free_ports(1)[0])
        self.address = f"127.0.0.1:{self.port}"
        return ["redis-server", "--port", self.port, "--bind", "127.0.0.1", "--save", "", "--dir", self.folder]

    def _check(self):
        return ["sh", "-c", f"redis-cli -p {self.port} ping 2>/dev/null"]

    def _await(self):
        super()._await()
        # A server that is younger than the usual TTL grants nothing, because its predecessor may have forgotten locks. This
        # one had none: so it gets the record of a quiet time that is over (store/redis documents it).
        said = subprocess.run(["redis-cli", "-p", self.port, "info", "replication"], capture_output=True, text=True, check=True).stdout
        run = re.search(r"master_replid:(\w+)", said)[1]
        meta = ["run", run, "history", run[:32], "until", "0", "floor", "0", "lost", ""]
        subprocess.run(["redis-cli", "-p", self.port, "hset", "locksidecar:{10}:meta", *meta], capture_output=True, check=True)


def free_ports(n):
    """Returns n different ports that nothing listens on."""
    sockets = [socket.socket() for _ in range(n)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


class Memory:
    """The store in the sidecar, which has no server."""

    url = "memory://"

    def stop(self):
        pass


STORES = {"memory": Memory, "postgres": Postgres, "etcd": Etcd, "mysql": MySQL, "redis": Redis}


def start_store(name):
    """Starts the server of a store. The caller stops it."""
    if name not in STORES:
        raise NotStarted(f"there is no store {name}; there are {', '.join(STORES)}")
    return STORES[name]()


def main():
    server = start_store(sys.argv[1])
    try:
        print(server.url, flush=True)
        sys.stdin.read()
    finally:
        server.stop()


if __name__ == "__main__":
    try:
        main()
    except NotStarted as e:
        sys.exit(f"contract: {e}")
