"""The connection to a coordinator, and what most programs do with it."""

import json
import os
import random
import ssl
import time
import uuid
import zlib
from pathlib import Path, PurePosixPath

from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.Thrift import TApplicationException, TException
from thrift.transport import TSocket, TSSLSocket, TTransport
from thrift.transport.TTransport import TTransportException

from .idl import Fenwick
from .idl.constants import PROTOCOL_VERSION
from .idl.ttypes import DocumentRef, DocumentSource, JobSpec, JobState, ModelRef, ServiceError

OVER = (JobState.COMPLETED, JobState.FAILED, JobState.EXPIRED, JobState.CANCELLED)
CHUNK_BYTES = 1 << 20
CONNECT_SECONDS = 5
REPLY_SECONDS = 90  # longer than the longest wait that the coordinator grants (a minute)
WAIT_MS = 30_000


class Unavailable(Exception):
    """The coordinator cannot be reached, or the connection to it broke too often."""


class Client:
    """Calls of fenwick.thrift as methods: `client.getJob(job_id)`, `client.listWorkers("", 100)`, ...

    A call that fails because the coordinator is away, or that it answers with a retryable ServiceError, is made again for
    up to `retry_seconds`: every call is safe to repeat. Other errors are raised as ServiceError. For one thread; usable as
    a context manager.

    token: the client's token; by default that of the environment variable FENWICK_TOKEN.
    tls_ca, tls_cert, tls_key: PEM files; tls_ca turns TLS on, the other two are for mutual TLS.
    """

    def __init__(self, host="127.0.0.1", port=7710, token=None, tls_ca=None, tls_cert=None, tls_key=None, retry_seconds=60):
        self._host, self._port = host, port
        self._token = token if token is not None else os.environ.get("FENWICK_TOKEN", "")
        self._tls = None
        if tls_ca:
            self._tls = ssl.create_default_context(cafile=tls_ca)
            if tls_cert:
                self._tls.load_cert_chain(tls_cert, tls_key)
        elif tls_cert or tls_key:
            raise ValueError("tls_cert: expected tls_ca as well, the authority that signed the coordinator's certificate")
        self._retry_seconds = retry_seconds
        self._transport = None
        self._calls = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends the connection; the next call makes a new one."""
        if self._transport is not None:
            self._transport.close()
        self._transport = self._calls = None

    def __getattr__(self, name):
        if name.startswith("_") or not hasattr(Fenwick.Iface, name):
            raise AttributeError(f"Fenwick's service has no call {name!r}")
        return lambda *arguments: self._call(name, arguments)

    # ---- whole tasks

    def upload(self, path):
        """Uploads a file and returns its id, for DocumentSource(uploadId=...)."""
        path = Path(path)
        with path.open("rb") as file:
            upload = self.beginUpload(path.name, os.fstat(file.fileno()).st_size)
            offset = 0
            while data := file.read(CHUNK_BYTES):
                self.putChunk(upload.id, offset, data, zlib.crc32(data))
                offset += len(data)
        self.commitUpload(upload.id)
        return upload.id

    def submit(self, model, documents, key=None, **options):
        """Submits a job and returns it.

        model: name of one of the coordinator's models, or (with a "/") the path of a model folder there.
        documents: paths of local files, which are uploaded, or DocumentRefs.
        key: idempotency key; the same key gives the same job, however often it is submitted.
        options: further fields of JobSpec (bos=True, priority=5, name="...").
        """
        ref = ModelRef(path=model) if "/" in model else ModelRef(name=model)
        refs = [
            item if isinstance(item, DocumentRef) else DocumentRef(source=DocumentSource(uploadId=self.upload(item)))
            for item in documents
        ]
        return self.submitJob(JobSpec(model=ref, documents=refs, **options), key or uuid.uuid4().hex)

    def wait(self, job_id, timeout=None, on_change=None):
        """Returns the job once it is over. Raises TimeoutError after `timeout` seconds (None: never); the job goes on.
        on_change: called with the job whenever it has moved."""
        end = None if timeout is None else time.monotonic() + timeout
        job = self.getJob(job_id)
        while True:
            if on_change:
                on_change(job)
            if job.state in OVER:
                return job
            left = WAIT_MS if end is None else int(1000 * (end - time.monotonic()))
            if left <= 0:
                raise TimeoutError(f"job {job_id} is not over after {timeout} s")
            job = self.waitJob(job_id, job.version, min(left, WAIT_MS))

    def documents(self, job_id, page_size=500):
        """Yields the job's documents in input order."""
        token = ""
        while True:
            page = self.listDocuments(job_id, token, page_size, [])
            yield from page.documents
            token = page.nextPageToken
            if not token:
                return

    def read(self, job_id, file):
        """A result file as bytes: "results.jsonl", "errors.jsonl", "manifest.json", "nll/NAME.npy"."""
        parts, offset = [], 0
        while True:
            chunk = self.readResult(job_id, file, offset, CHUNK_BYTES)
            parts.append(chunk.data)
            offset += len(chunk.data)
            if chunk.last:
                return b"".join(parts)
            if not chunk.data:
                raise EOFError(f"{file}: the coordinator gives nothing at byte {offset} of {chunk.size}")

    def results(self, job_id):
        """The rows of results.jsonl as dictionaries, in input order."""
        return [json.loads(line) for line in self.read(job_id, "results.jsonl").splitlines()]

    def errors(self, job_id):
        """The rows of errors.jsonl: one for each bad document."""
        return [json.loads(line) for line in self.read(job_id, "errors.jsonl").splitlines()]

    def download(self, job_id, folder):
        """Brings all result files into `folder`, manifest.json last. Each appears whole or not at all."""
        manifest = self.read(job_id, "manifest.json")
        for entry in json.loads(manifest)["files"]:
            name = PurePosixPath(entry["name"])
            if name.is_absolute() or ".." in name.parts:
                raise ValueError(f"the manifest names {entry['name']!r}: expected a name within the output folder")
            self._write(Path(folder) / name, self.read(job_id, entry["name"]))
        self._write(Path(folder) / "manifest.json", manifest)

    # ---- how

    @staticmethod
    def _write(path, content):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + f".{os.getpid()}.tmp")
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def _connect(self):
        if self._tls is None:
            socket = TSocket.TSocket(self._host, self._port)
        else:
            socket = TSSLSocket.TSSLSocket(self._host, self._port, ssl_context=self._tls, server_hostname=self._host)
        socket.setTimeout(1000 * CONNECT_SECONDS)
        self._transport = TTransport.TFramedTransport(socket)
        calls = Fenwick.Client(TBinaryProtocolAccelerated(self._transport))
        self._transport.open()
        socket.setTimeout(1000 * REPLY_SECONDS)
        if self._token:
            calls.authenticate(self._token)
        calls.getServerInfo(PROTOCOL_VERSION)
        self._calls = calls

    def _call(self, name, arguments):
        give_up = time.monotonic() + self._retry_seconds
        pause = 0.2
        while True:
            try:
                if self._calls is None:
                    self._connect()
                return getattr(self._calls, name)(*arguments)
            except ServiceError as error:
                if not error.retryable:
                    raise
                problem, pause = error, max(pause, error.retryAfterMs / 1000)
            except TApplicationException:
                self.close()
                raise
            except (TTransportException, TException, OSError) as error:
                self.close()
                problem = Unavailable(f"{self._host}:{self._port}: {error}; is the coordinator running there?")
                problem.__cause__ = error
                if isinstance(error.__cause__ or error.__context__ or error, ssl.SSLCertVerificationError):
                    raise problem  # trust does not come with time
            if time.monotonic() + pause > give_up:
                raise problem
            time.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(2 * pause, 5)
