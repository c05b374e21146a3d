"""The sources of the repository, as the checks beside this read them: files, code without comments, items and names."""

import collections
import functools
import os
import pathlib
import re
import sys

STRING = r'b?c?"(?:\\.|[^"\\])*"|\b(?:br|cr|r)(?P<hashes>#*)".*?"(?P=hashes)'
CHARACTER = r"b?'(?:\\(?:u\{[^}]*\}|x[0-9a-fA-F]{2}|.)|[^\\'\n])'"
COMMENT = r"//[^\n]*|/\*(?:(?!\*/|/\*).|/\*.*?\*/)*\*/"
NOT_CODE = re.compile(f"{COMMENT}|{STRING}|{CHARACTER}", re.DOTALL)
PRIVATE = re.compile(r"\bpub\s*\(\s*in\s[^)]*\)")
ATTRIBUTE = re.compile(r"#\s*!?\s*\[")
VISIBLE = r"\s*(?:pub\b\s*(?:\([^)]*\)\s*)?)?"
# An item or a statement that ends with its first block, or with a semicolon before.
WITH_BLOCK = re.compile(
    VISIBLE + r"(?:(?:(?:const|async|unsafe|extern)\s+)*(?:fn|mod|impl|struct|enum|union|trait|macro_rules)\b"
    r"|(?:if|for|loop|match|while)\b|\{)"
)
# One that ends with a semicolon. All others are fields, variants, arms or expressions, and may end with a comma.
WITH_SEMICOLON = re.compile(VISIBLE + r"(?:use|const|static|type|let)\b")
PAIRS = {"{": "}", "[": "]", "(": ")"}

FUNCTION = re.compile(r"\bfn\s+(\w+)")
ITEM = re.compile(
    r"^[ \t]*(?:pub(?:\([^)]*\))? )?(?:unsafe |default )*(struct|enum|union|trait|impl|type)\b([^;{]*)[;{]",
    re.MULTILINE,
)
# The names in the body of an item: of functions, and besides of variants and fields.
MEMBER = re.compile(r"\b(?:fn|const|type)\s+(\w+)")
MEMBERS = {
    "enum": re.compile(r"^[ \t]*([A-Z]\w*)", re.MULTILINE),
    "struct": re.compile(r"^[ \t]*(?:pub(?:\([^)]*\))? )?(\w+):", re.MULTILINE),
}

Item = collections.namedtuple("Item", "kind names line members")
Function = collections.namedtuple("Function", "name line lines")


def run(breaches):
    """Prints the breaches that a check finds below the root, the repository if no argument names another, and exits."""
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent).resolve()
    if not (root / "Cargo.toml").is_file():
        sys.exit(f"{root} is not the root of the repository")
    found = list(breaches(root))
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))


def files(root, ending):
    """All files below a folder, but those of a build (`target`, or a folder that cargo has marked as a cache)."""
    for folder, folders, names in os.walk(root):
        if "CACHEDIR.TAG" in names:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if name != "target" and not name.startswith("."))
        yield from (pathlib.Path(folder, name) for name in sorted(names) if name.endswith(ending))


TEST_FILE = re.compile(r"(?:\w+_)?tests?\.rs|test_\w+\.rs|testing\.rs")


def is_test(path):
    """Whether a file, given by its path from the root, holds tests or benchmarks alone."""
    return not {"tests", "benches"}.isdisjoint(path.parts[:-1]) or bool(TEST_FILE.fullmatch(path.name))


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def blanked(found):
    return re.sub(r"[^\n]", " ", found[0])


def matching(text, at):
    """The place of the bracket that closes the one at `at`."""
    depth, opening, closing = 0, text[at], PAIRS[text[at]]
    for found in re.compile(re.escape(opening) + "|" + re.escape(closing)).finditer(text, at):
        depth += 1 if found[0] == opening else -1
        if depth == 0:
            return found.start()
    return len(text) - 1


def branches(tree):
    """What the commas of a list separate."""
    parts, depth, start = [], 0, 0
    for at, c in enumerate(tree + ","):
        depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(c, 0)
        if c == "," and depth == 0:
            parts.append(tree[start:at].strip())
            start = at + 1
    return [part for part in parts if part]


def can_be(value, predicate):
    """Whether the predicate of a `cfg` can have a value in a build that is no test. Most flags may have any."""
    predicate = predicate.strip()
    if found := re.fullmatch(r"(any|all|not)\s*\((.*)\)", predicate, re.DOTALL):
        parts = branches(found[2])
        if found[1] == "not":
            return can_be(not value, parts[0])
        return (all if value == (found[1] == "all") else any)(can_be(value, part) for part in parts)
    return not value or predicate not in {"test", "doctest", "fuzzing"}


def item_end(text, at):
    """The end of the item, field, arm or statement that begins at `at`."""
    while found := re.compile(r"\s*#\s*\[").match(text, at):
        at = matching(text, found.end() - 1) + 1
    has_block, has_semicolon = WITH_BLOCK.match(text, at), WITH_SEMICOLON.match(text, at)
    while at < len(text):
        c = text[at]
        if c in PAIRS:
            at = matching(text, at)
            if c == "{" and has_block:
                return at + 1
        elif c in ")]}":
            return at
        elif c == ";" or (c == "," and not has_block and not has_semicolon):
            return at + 1
        at += 1
    return at


@functools.lru_cache(None)
def production(text):
    """A file's code, every character at its place, without comments, strings, and what only tests have."""
    text = PRIVATE.sub(blanked, NOT_CODE.sub(blanked, text))
    at = 0
    while found := ATTRIBUTE.search(text, at):
        end = matching(text, found.end() - 1)
        content = text[found.end() : end].strip()
        predicate = re.fullmatch(r"cfg\s*\((.*)\)", content, re.DOTALL)
        at = end + 1
        if content == "test" or (predicate and not can_be(True, predicate[1])):
            start, at = (0, len(text)) if "!" in found[0] else (found.start(), item_end(text, at))
            text = text[:start] + re.sub(r"[^\n]", " ", text[start:at]) + text[at:]
    return text


@functools.lru_cache(None)
def functions(text):
    """The functions of a file's production code that have a body. Lines are from `fn` to the closing bracket."""
    code, found = production(text), []
    for function in FUNCTION.finditer(code):
        at = function.end()
        while at < len(code) and code[at] not in "{;":
            at = matching(code, at) + 1 if code[at] in PAIRS else at + 1
        if at < len(code) and code[at] == "{":
            lines = code.count("\n", function.start(), matching(code, at)) + 1
            found.append(Function(function[1], line_of(code, function.start()), lines))
    return found


@functools.lru_cache(None)
def items(text):
    """The types, traits and implementations of a file's production code, each with the names in its body.

    An implementation has the names of its type and its trait. The types that it or a trait gives a name to are none.
    """
    code, found, inside = production(text), [], 0
    for item in ITEM.finditer(code):
        kind, header = item[1], item[2].replace("->", "").split("where")[0]
        if item.start(1) < inside and kind == "type":
            continue
        while header != (shorter := re.sub(r"<[^<>]*>", "", header)):
            header = shorter
        names = re.findall(r"\b[A-Z]\w*", header) if kind == "impl" else re.findall(r"^\s*(\w+)", header)
        body, end = "", item.end()
        if code[end - 1] == "{":
            end = matching(code, end - 1)
            body = code[item.end() : end]
        if kind in {"trait", "impl"}:
            inside = end
        members = {*MEMBER.findall(body), *MEMBERS.get(kind, MEMBER).findall(body)}
        found.append(Item(kind, names, line_of(code, item.start(1)), members))
    return found


@functools.lru_cache(None)
def words(text):
    return frozenset(re.findall(r"\w+", production(text)))


class Names:
    """The names that production code has."""

    def __init__(self, root):
        self.words, self.members, self.types = set(), collections.defaultdict(set), set()
        for path in files(root, ".rs"):
            if is_test(path.relative_to(root)):
                continue
            text = path.read_text()
            self.words |= words(text)
            for item in items(text):
                if item.kind != "impl":
                    self.types.update(item.names)
                for name in item.names:
                    self.members[name] |= item.members

    def has(self, name):
        """Whether there is a name, or a path like `Type::member` or `module::function`."""
        *before, last = re.sub(r"[(<].*", "", name).split("::")
        if not all(word in self.words for word in [*before, last]):
            return False
        return not before or before[-1] not in self.types or last in self.members[before[-1]]
