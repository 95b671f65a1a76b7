"""A client of Fenwick's coordinator. `Client` connects, uploads, submits, waits and reads; `idl` holds the structs that
Thrift generates from coordinator/idl/fenwick.thrift."""

from .client import Client, Unavailable
from .idl.ttypes import (
    DocumentRef,
    DocumentSource,
    DocumentState,
    ErrorCode,
    JobSpec,
    JobState,
    ModelRef,
    ServiceError,
)

__all__ = [
    "Client",
    "DocumentRef",
    "DocumentSource",
    "DocumentState",
    "ErrorCode",
    "JobSpec",
    "JobState",
    "ModelRef",
    "ServiceError",
    "Unavailable",
]
