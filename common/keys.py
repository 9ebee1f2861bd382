"""The name of every Redis key, in one place. See docs/architecture.md, "Keys"."""

import hashlib
from dataclasses import dataclass

ARQ_JOB_PREFIX = "arq:job:"
"""arq's own constant (arq.constants.job_key_prefix); its payload must stay where arq looks for it."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names below one namespace. Stream-plane keys carry the hash tag `{id}`; the rest is control plane."""

    namespace: str = "tr"

    # Prefixes are for scripts that build keys of many jobs or models (control plane only, never a cluster).
    @property
    def job_prefix(self) -> str:
        return f"{self.namespace}:job:"

    @property
    def cancel_prefix(self) -> str:
        return f"{self.namespace}:cancel:"

    @property
    def queue_prefix(self) -> str:
        return f"{self.namespace}:queue:"

    @property
    def running_prefix(self) -> str:
        return f"{self.namespace}:running:"

    @property
    def deadlines(self) -> str:
        return f"{self.namespace}:deadlines"

    @property
    def workers(self) -> str:
        return f"{self.namespace}:workers"

    @property
    def models(self) -> str:
        return f"{self.namespace}:models"

    @property
    def webhooks(self) -> str:
        return f"{self.namespace}:webhooks"

    @property
    def webhook_prefix(self) -> str:
        return f"{self.namespace}:webhook:"

    @property
    def wake_prefix(self) -> str:
        return f"{self.namespace}:wake:"

    @property
    def batch_prefix(self) -> str:
        return f"{self.namespace}:batch:"

    def queue(self, model: str) -> str:
        return self.queue_prefix + model

    def running(self, model: str) -> str:
        return self.running_prefix + model

    def wake(self, model: str) -> str:
        return self.wake_prefix + model

    def swept(self, model: str) -> str:
        return f"{self.namespace}:swept:{model}"

    def job(self, job_id: str) -> str:
        return self.job_prefix + job_id

    def cancel(self, job_id: str) -> str:
        return self.cancel_prefix + job_id

    def steer(self, job_id: str) -> str:
        return f"{self.namespace}:steer:{job_id}"

    def arq_job(self, job_id: str) -> str:
        return ARQ_JOB_PREFIX + job_id

    def idempotency(self, owner: str, key: str) -> str:
        # Hashed: a client's key may be long or binary, and must not be readable as another owner's.
        return f"{self.namespace}:idem:{_digest(owner, key)}"

    def batch(self, batch_id: str) -> str:
        return self.batch_prefix + batch_id

    def batch_lines(self, batch_id: str) -> str:
        return f"{self.namespace}:batch-lines:{batch_id}"

    def webhook(self, subject: str) -> str:
        return self.webhook_prefix + subject

    def webhook_gone(self, owner: str, url: str) -> str:
        return f"{self.namespace}:webhook-gone:{_digest(owner, url)}"

    def worker(self, worker_id: str) -> str:
        return f"{self.namespace}:worker:{worker_id}"

    def stream(self, job_id: str) -> str:
        return f"{self.namespace}:stream:{{{job_id}}}"

    def attached(self, job_id: str) -> str:
        return f"{self.namespace}:attached:{{{job_id}}}"


def _digest(owner: str, name: str) -> str:
    return hashlib.sha256(f"{owner}\0{name}".encode()).hexdigest()
