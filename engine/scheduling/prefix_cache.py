"""Which page holds which prefix: a hash chain over full pages, as in vLLM's automatic prefix caching.

A page's key is hash(parent's key, its tokens); the chain's root is hash(model and dtype version, salt). So a key
names everything the page's K and V depend on, and one tenant's pages can not be found under another's salt. The
hash is BLAKE2b with 128 bits: a tenant who could make keys collide would read another's context.
"""

from array import array
from hashlib import blake2b

from engine.scheduling.request import Sequence

KEY_BYTES = 16


class PrefixCache:
    """Maps keys to pages and back. Who references a page, and whether it is evicted, is `PagePool`'s business."""

    def __init__(self, page_size: int, version: str) -> None:
        """`version` names the model, its weights' and its cache's type."""
        self._page_size = page_size
        self._version = version
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._page_of)

    def __contains__(self, page: int) -> bool:
        return page in self._key_of

    def keys(self, sequence: Sequence, num_pages: int) -> list[bytes]:
        """Keys of the sequence's leading full pages, at least `num_pages` of them; each is computed once."""
        keys, size = sequence.page_keys, self._page_size
        for index in range(len(keys), num_pages):
            parent = keys[-1] if keys else self.root(sequence.submit.salt)
            keys.append(self.child(parent, sequence.tokens[index * size : (index + 1) * size]))
        return keys

    def root(self, salt: str) -> bytes:
        """Start of every chain of this salt."""
        return blake2b(f"{len(self._version)}:{self._version}{salt}".encode(), digest_size=KEY_BYTES).digest()

    def child(self, parent: bytes, page_tokens: list[int] | tuple[int, ...]) -> bytes:
        """Key of a full page behind `parent`."""
        return blake2b(parent + array("I", page_tokens).tobytes(), digest_size=KEY_BYTES).digest()

    def find(self, key: bytes) -> int | None:
        """The page with this key."""
        return self._page_of.get(key)

    def insert(self, key: bytes, page: int) -> None:
        """Make a committed full page findable. Where the key has a page already, that one stays."""
        if key not in self._page_of:
            self._page_of[key] = page
            self._key_of[page] = key

    def forget(self, page: int) -> None:
        """The page was evicted."""
        del self._page_of[self._key_of.pop(page)]
