"""PrefixCache: a radix tree over token ids whose nodes own whole pages.

    root of salt None
      |- [7 2 9 4 | 1 1 5 8]  pages 3, 0        one edge per different first page
      |     |- [6 6 6 6]      page 8     <- locked: a running request has read down to here
      |     `- [2 3 5 7]      page 5     <- a leaf nobody uses: evicted first, if used longest ago
      `- [4 4 4 4]            page 1

Here a page holds 4 tokens. A path from the root spells a prefix, its pages hold that prefix's KV.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from octavo.engine.page_keys import page_keys, root_key
from octavo.engine.page_pool import PagePool, ensure

Key = tuple[int, ...]
Spill = Callable[[Sequence[bytes], Sequence[int]], None]
"""Called with the keys and pages of a prefix's end that is about to be evicted."""


Usable = Callable[[Sequence[int]], Sequence[int]]


class Node:
    """An edge of the tree and its lower end: len(tokens) == len(pages) * page_size.

    Attributes:
        locks: how many requests use this node or one below it.
        last_used: tick of the tree's clock; never older than that of a node below.
        keys: names of the pages (engine.page_keys), as many as have been asked for.
    """

    __slots__ = ("children", "keys", "last_used", "locks", "pages", "parent", "tokens")

    def __init__(self, parent: Node | None, tokens: list[int], pages: list[int], last_used: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.pages = pages
        self.children: dict[Key, Node] = {}
        self.locks = 0
        self.last_used = last_used
        self.keys: list[bytes] = []


class PrefixCache:
    """Finds the longest cached prefix of a sequence, page by page.

    1. The tree holds one reference (PagePool) to each of its pages. Whoever uses pages locks the
       deepest node; a lock protects the whole path to the root.
    2. match(), insert(), lock() and unlock() cost O(length), at the speed of list comparison.
    3. Only leaves without locks are evicted, from their last page on, least recently used first.
    4. Prefixes of different salts never meet: each salt has a root of its own.

    Attributes:
        spill: is told of what is evicted, while its pages still hold it.
    """

    def __init__(self, pool: PagePool, page_size: int) -> None:
        self.page_size = page_size
        self.num_pages = 0
        self.num_evictable = 0
        self.query_tokens = 0
        self.hit_tokens = 0
        self.spill: Spill | None = None
        self._pool = pool
        self._roots: dict[str | None, Node] = {}
        self._salts: dict[Node, str | None] = {}
        self._clock = 0
        self._num_nodes = 0
        # (last_used, unique, node) of leaves without locks; entries may be stale, see _is_current.
        self._lru: list[tuple[int, int, Node]] = []
        self._pushes = 0

    def match(self, tokens: list[int], salt: str | None = None) -> tuple[Node, list[int]]:
        """The deepest node on the path of these tokens and the pages of that path.

        The node ends exactly where the match ends (an edge matched in part is split). It is the
        root when nothing matches. Lock it before anything else happens to the tree.
        """
        node, pages, at = self._root(salt), [], 0
        while (child := self._child(node, tokens, at)) is not None:
            common = self._common_pages(child, tokens, at)
            if common < len(child.pages):
                child = self._split(child, common)
            pages += child.pages
            at += len(child.tokens)
            node = child
        return node, pages

    def matched_pages(self, tokens: list[int], salt: str | None = None) -> list[int]:
        """The pages that match() would find. Changes nothing."""
        root = self._roots.get(salt)
        return [] if root is None else self._pages_below(root, tokens)

    def unused_pages(self, node: Node, tokens: list[int]) -> list[int]:
        """Those below a node that hold these tokens; none if somebody has locked some of them."""
        child = self._child(node, tokens, 0)
        # (What is below an unlocked node is unlocked.)
        return [] if child is None or child.locks else self._pages_below(node, tokens)

    def _pages_below(self, node: Node, tokens: list[int]) -> list[int]:
        pages: list[int] = []
        at = 0
        while (child := self._child(node, tokens, at)) is not None:
            common = self._common_pages(child, tokens, at)
            pages += child.pages[:common]
            at += common * self.page_size
            if common < len(child.pages):
                break
            node = child
        return pages

    def replace(self, node: Node, tokens: list[int], pages: list[int]) -> None:
        """Hold these pages below a node in the place of unused_pages()."""
        at = 0
        while (child := self._child(node, tokens, at)) is not None:
            common = self._common_pages(child, tokens, at)
            if common < len(child.pages):
                child = self._split(child, common)
            first = at // self.page_size
            new = pages[first : first + common]
            self._pool.retain(new)
            old, child.pages = child.pages, new
            self._pool.release(old)
            at += len(child.tokens)
            node = child

    def holds_next(self, node: Node, tokens: list[int]) -> bool:
        """Whether the first page of these tokens is cached below the node."""
        return self._child(node, tokens, 0) is not None

    def insert(self, node: Node, tokens: list[int], pages: list[int]) -> Node:
        """Add the continuation of a node's prefix; len(tokens) == len(pages) * page_size.

        Pages whose tokens are in the tree already are left to the caller: the tree keeps its own.
        The caller has locked the node. Returns the node at which the continuation ends; locking it
        instead of the old one is the caller's business.
        """
        ensure(len(tokens) == len(pages) * self.page_size, "only whole pages enter the prefix cache")
        start, at = node, 0
        while (child := self._child(node, tokens, at)) is not None:
            common = self._common_pages(child, tokens, at)
            if common < len(child.pages):
                child = self._split(child, common)
            at += len(child.tokens)
            node = child
        if at == len(tokens):
            return node
        new_tokens, new_pages = tokens[at:], pages[at // self.page_size :]
        self._pool.retain(new_pages)
        self.num_pages += len(new_pages)
        if node is start and node.parent is not None and not node.children and node.locks == 1:
            # Nobody but the caller looks at this leaf: a prompt computed in chunks stays one node.
            node.tokens += new_tokens
            node.pages += new_pages
            return node
        self.num_evictable += len(new_pages)
        leaf = self._attach(node, new_tokens, new_pages)
        self._offer(leaf)
        return leaf

    def lock(self, node: Node) -> None:
        """Protect the path to this node from eviction."""
        self._clock += 1
        walk: Node | None = node
        while walk is not None:
            if walk.locks == 0:
                self.num_evictable -= len(walk.pages)
            walk.locks += 1
            walk.last_used = self._clock
            walk = walk.parent

    def unlock(self, node: Node) -> None:
        """Undo one lock()."""
        self._clock += 1
        walk: Node | None = node
        while walk is not None:
            ensure(walk.locks > 0, "a node was unlocked twice")
            walk.locks -= 1
            walk.last_used = self._clock
            if walk.locks == 0:
                self.num_evictable += len(walk.pages)
            walk = walk.parent
        self._offer(node)

    def withdraw(self, node: Node, count: int) -> bool:
        """Unlock a path whose last count pages its only user takes back. What unused prefixes hold below
        these goes with them.

        False: somebody else has locked some of them; then nothing has changed.
        """
        end, left = node, count
        while left > 0:
            if end.locks != 1:
                return False  # (so no child that lies beside the path is locked)
            left -= len(end.pages)
            assert end.parent is not None
            end = end.parent
        self.unlock(node)
        while count:
            self._drop_below(node)
            parent, taken = node.parent, min(count, len(node.pages))
            self._trim(node, taken)
            count -= taken
            if count:
                assert parent is not None
                node = parent
        return True

    def _drop_below(self, node: Node) -> None:
        """Evict what continues a node; nobody uses it."""
        below = list(node.children.values())
        for child in below:  # grows while it is walked: breadth first
            below.extend(child.children.values())
        for child in reversed(below):
            if self.spill is not None:
                self.spill(self._keys(child), child.pages)
            self._trim(child, len(child.pages))

    def evict(self, count: int, forget: bool = False) -> int:
        """Free at least min(count, num_evictable) pages, those used longest ago. Returns how many.

        Args:
            forget: `spill` is not told of it.
        """
        freed = 0
        while freed < count and self._lru:
            stamp, _, leaf = heapq.heappop(self._lru)
            if not self._is_current(leaf, stamp):
                continue
            taken = min(count - freed, len(leaf.pages))
            freed += taken
            if self.spill is not None and not forget:
                self.spill(self._keys(leaf)[-taken:], leaf.pages[-taken:])
            self._trim(leaf, taken)
        return freed

    def record(self, queried: int, hit: int) -> None:
        """Count a request's first look-up, in tokens."""
        self.query_tokens += queried
        self.hit_tokens += hit

    def contents(self, usable: Usable | None = None) -> list[tuple[bytes, int]]:
        """(key, page) of all that is cached: what was used last first, a prefix before what continues it.

        Args:
            usable: of consecutive pages, the first ones that are worth something; nor is what follows others.
        """
        found: list[tuple[bytes, int]] = []
        cut: set[Node | None] = set()
        for node in sorted(self.nodes(), key=lambda node: -node.last_used):  # stable, and parents come first
            pages = node.pages if usable is None else usable(node.pages)
            if node.parent in cut or len(pages) < len(node.pages):
                cut.add(node)
            if node.parent not in cut:
                found += zip(self._keys(node), pages, strict=False)
        return found

    def _keys(self, node: Node) -> list[bytes]:
        """The names of a node's pages; what was named once is kept."""
        path, walk = [], node
        while walk.parent is not None and len(walk.keys) < len(walk.pages):
            path.append(walk)
            walk = walk.parent
        key = walk.keys[-1] if walk.keys else root_key(self._salts[walk]) if path else b""
        for below in reversed(path):
            done = len(below.keys)
            key = below.keys[-1] if done else key
            below.keys += page_keys(key, below.tokens[done * self.page_size :], self.page_size)
            key = below.keys[-1]
        return node.keys

    def _root(self, salt: str | None) -> Node:
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = Node(None, [], [], self._clock)
            self._salts[root] = salt
        return root

    def _child(self, node: Node, tokens: list[int], at: int) -> Node | None:
        """The edge that begins with the page of tokens at this index, if a whole page is left."""
        if at + self.page_size > len(tokens):
            return None
        return node.children.get(tuple(tokens[at : at + self.page_size]))

    def _common_pages(self, node: Node, tokens: list[int], at: int) -> int:
        """How many pages of an edge agree with the tokens; its first one does."""
        size, edge = self.page_size, node.tokens
        if tokens[at : at + len(edge)] == edge:
            return len(node.pages)
        offset = size
        while edge[offset : offset + size] == tokens[at + offset : at + offset + size]:
            offset += size
        return offset // size

    def _split(self, node: Node, count: int) -> Node:
        """Cut an edge after count pages. The node keeps its lower part, so that whoever has locked it
        still holds all it used; the new upper part is returned."""
        cut, parent = count * self.page_size, node.parent
        ensure(parent is not None and 0 < count < len(node.pages), "an edge is split inside")
        assert parent is not None
        upper = self._attach(parent, node.tokens[:cut], node.pages[:count])
        upper.locks, upper.last_used = node.locks, node.last_used
        upper.keys, node.keys = node.keys[:count], node.keys[count:]
        node.tokens, node.pages, node.parent = node.tokens[cut:], node.pages[count:], upper
        upper.children[tuple(node.tokens[: self.page_size])] = node
        return upper

    def _attach(self, parent: Node, tokens: list[int], pages: list[int]) -> Node:
        node = Node(parent, tokens, pages, parent.last_used)
        parent.children[tuple(tokens[: self.page_size])] = node
        self._num_nodes += 1
        return node

    def _trim(self, leaf: Node, count: int) -> None:
        """Give up the last pages of an evictable leaf, and the leaf with its last one."""
        self._pool.release(leaf.pages[-count:])
        self.num_pages -= count
        self.num_evictable -= count
        if count < len(leaf.pages):
            del leaf.pages[-count:]
            del leaf.tokens[-count * self.page_size :]
            del leaf.keys[len(leaf.pages) :]
            self._offer(leaf)
            return
        parent = leaf.parent
        assert parent is not None
        del parent.children[tuple(leaf.tokens[: self.page_size])]
        leaf.parent, leaf.tokens, leaf.pages, leaf.keys = None, [], [], []
        self._num_nodes -= 1
        self._offer(parent)

    def _offer(self, node: Node) -> None:
        """Note that a node may have become evictable; a root that nothing needs any more goes."""
        if node.locks or node.children:
            return
        if node.parent is None:
            salt = self._salts.pop(node, None)
            if self._roots.get(salt) is node:
                del self._roots[salt]
            return
        self._pushes += 1
        heapq.heappush(self._lru, (node.last_used, self._pushes, node))
        if len(self._lru) > 2 * self._num_nodes + 64:
            self._lru = [entry for entry in self._lru if self._is_current(entry[2], entry[0])]
            heapq.heapify(self._lru)

    @staticmethod
    def _is_current(node: Node, stamp: int) -> bool:
        return node.last_used == stamp and node.locks == 0 and not node.children and node.parent is not None

    def nodes(self) -> list[Node]:
        """All nodes, the roots included, each after its parent."""
        found = list(self._roots.values())
        for node in found:  # grows while it is walked: breadth first
            found.extend(node.children.values())
        return found

    def check_integrity(self) -> None:
        """Raise IntegrityError unless the tree's own books agree. Locks of a node: KVManager."""
        nodes, size = self.nodes(), self.page_size
        inner = [node for node in nodes if node.parent is not None]
        pages = [page for node in inner for page in node.pages]
        ensure(len(set(pages)) == len(pages) == self.num_pages, "a page is twice in the tree, or miscounted")
        ensure(all(self._pool.references(page) > 0 for page in pages), "the tree holds a free page")
        ensure(len(inner) == self._num_nodes, "nodes are miscounted")
        evictable = sum(len(node.pages) for node in inner if node.locks == 0)
        ensure(evictable == self.num_evictable, f"{self.num_evictable} evictable pages, found {evictable}")
        offered = {id(node) for stamp, _, node in self._lru if self._is_current(node, stamp)}
        for node in nodes:
            below = sum(child.locks for child in node.children.values())
            ensure(node.locks >= below, "a node has fewer locks than the nodes below it")
            for key, child in node.children.items():
                ensure(child.parent is node, "a child has another parent")
                ensure(key == tuple(child.tokens[:size]), "an edge has a wrong key")
                ensure(child.last_used <= node.last_used, "a child is younger than its parent")
            if node.parent is None:
                ensure(bool(node.children) or node.locks > 0, "an empty root was left behind")
                continue
            ensure(0 < len(node.pages) * size == len(node.tokens), "a node does not own whole pages")
            ensure(len(node.keys) <= len(node.pages), "a node names pages that it does not own")
            if node.locks == 0 and not node.children:
                ensure(id(node) in offered, "an evictable leaf is missing from the LRU order")
