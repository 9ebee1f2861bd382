"""The folder of `tailrace up`: Redis's files, logs, the prepared model, and a lock against a second `up`."""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from cli.failure import Failure


@dataclass(frozen=True)
class DataDir:
    path: Path
    lock: int
    """File descriptor of the lock. Whoever inherits it holds the lock, too."""

    @classmethod
    def open(cls, path: Path) -> "DataDir":
        """Make the folder and lock it until this process ends. Raises Failure when it cannot be used."""
        try:
            for folder in (path, path / "redis", path / "logs"):
                folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise Failure(f"cannot use the data directory {path}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(lock, 32).decode().strip()
            raise Failure(f"another `tailrace up` (pid {owner}) uses {path}; choose another --data-dir") from error
        os.truncate(lock, 0)
        os.write(lock, b"%d\n" % os.getpid())
        return cls(path, lock)

    @property
    def redis(self) -> Path:
        return self.path / "redis"

    @property
    def models(self) -> Path:
        return self.path / "models"

    def log(self, name: str) -> Path:
        return self.path / "logs" / f"{name}.log"
