"""A small Hub on this machine: the part of its HTTP interface that publishing and loading use, in memory."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit


class File(NamedTuple):
    """A file of a commit; large ones are kept by the hash of their content."""

    content: bytes
    large: bool

    def oid(self) -> str:
        if self.large:
            return hashlib.sha256(self.content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()


class Repo:
    """Commits of one repository, and where its branches stand."""

    def __init__(self, private: bool):
        self.private = private
        self.commits: dict[str, dict[str, File]] = {}
        self.branches: dict[str, str] = {}
        self.commit("main", {".gitattributes": File(b"*.safetensors filter=lfs\n", large=False)})

    def commit(self, branch: str, files: dict[str, File]) -> str:
        content = json.dumps([len(self.commits), sorted((name, file.oid()) for name, file in files.items())])
        sha = hashlib.sha1(content.encode()).hexdigest()
        self.commits[sha] = files
        self.branches[branch] = sha
        return sha

    def sha(self, revision: str) -> str | None:
        return self.branches.get(revision, revision if revision in self.commits else None)

    def files(self, revision: str = "main") -> dict[str, File]:
        return self.commits[self.sha(revision)]


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, status: int, message: str, **headers: str):
        self.status, self.message = status, message
        self.headers = {"X-Error-Message": message, **{name.replace("_", "-"): text for name, text in headers.items()}}


class HubServer(ThreadingHTTPServer):
    """
    The server; `with HubServer() as hub:` runs it in a thread.

    Args:
        tokens: Who a token stands for, and whether it may write: `{"hf_x": ("user", True)}`.
    """

    daemon_threads = True

    def __init__(self, tokens: dict[str, tuple[str, bool]], port: int = 0):
        super().__init__(("127.0.0.1", port), Handler)
        self.tokens = tokens
        self.repos: dict[str, Repo] = {}
        self.large: dict[str, bytes] = {}
        # Method and path of every request, and the bytes that came with it.
        self.log: list[tuple[str, str, int]] = []
        # "lfs" or "commit": the connection ends in the middle of every such upload.
        self.breaks_at: str | None = None
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()
        self.server_close()

    def uploads(self) -> list[str]:
        """Hashes of the large files that were sent, in order."""
        return [path.rsplit("/", 1)[1] for method, path, _ in self.log if method == "PUT"]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.answer()

    do_HEAD = do_POST = do_PUT = do_GET

    def answer(self) -> None:
        self.path_only = unquote(urlsplit(self.path).path)
        breaks = {"lfs": self.path_only.startswith("/lfs/"), "commit": "/commit/" in self.path_only}
        if breaks.get(self.server.breaks_at):
            self.server.log.append((self.command, self.path_only, 0))
            self.rfile.read(16)
            self.close_connection = True
            self.connection.close()
            return
        self.body = self.read_body()
        self.server.log.append((self.command, self.path_only, len(self.body)))
        try:
            for pattern, method in ROUTES.items():
                if (match := re.fullmatch(pattern, self.path_only)) is not None:
                    method(self, **match.groupdict())
                    return
            raise Refused(404, f"no such place: {self.command} {self.path}")
        except Refused as refusal:
            self.reply({"error": refusal.message}, refusal.status, refusal.headers)

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def reply(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def user(self) -> tuple[str, bool] | None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in self.server.tokens:
            raise Refused(401, "Invalid credentials in Authorization header")
        return self.server.tokens.get(token)

    def repo(self, kind: str, repo_id: str) -> Repo:
        """A repository that the token may read."""
        user, repo = self.user(), self.server.repos.get(f"{kind}/{repo_id}")
        if repo is None or (repo.private and (user is None or user[0] != repo_id.split("/")[0])):
            # A private one is hidden; without a token the answer is 401 either way.
            raise Refused(404 if user else 401, "Repository not found", X_Error_Code="RepoNotFound")
        return repo

    def check_right(self, repo_id: str) -> None:
        user = self.user()
        if user is None:
            raise Refused(401, "Invalid username or password.")
        if not user[1] or user[0] != repo_id.split("/")[0]:
            raise Refused(403, f"You don't have the rights to write to {repo_id}")

    def files(self, kind: str, repo_id: str, revision: str) -> tuple[str, dict[str, File]]:
        repo = self.repo(kind, repo_id)
        sha = repo.sha(revision)
        if sha is None:
            raise Refused(404, f"Invalid rev id: {revision}", X_Error_Code="RevisionNotFound")
        return sha, repo.commits[sha]

    def who(self) -> None:
        if (user := self.user()) is None:
            raise Refused(401, "Invalid username or password.")
        self.reply({"type": "user", "name": user[0], "orgs": []})

    def create(self) -> None:
        wanted = json.loads(self.body)
        kind, repo_id = f"{wanted.get('type', 'model')}s", f"{wanted['organization']}/{wanted['name']}"
        self.check_right(repo_id)
        url = f"{self.server.url}/{'' if kind == 'models' else f'{kind}/'}{repo_id}"
        if f"{kind}/{repo_id}" in self.server.repos:
            self.reply({"error": "You already created this repo", "url": url}, 409)
            return
        self.server.repos[f"{kind}/{repo_id}"] = Repo(wanted.get("visibility") == "private" or wanted.get("private"))
        self.reply({"url": url})

    def validate(self) -> None:
        self.reply({"errors": [], "warnings": []})

    def branch(self, kind: str, repo_id: str, branch: str) -> None:
        self.check_right(repo_id)
        repo = self.repo(kind, repo_id)
        if branch in repo.branches:
            raise Refused(409, "Reference already exists")
        repo.branches[branch] = repo.branches["main"]
        self.reply({})

    def preupload(self, kind: str, repo_id: str, revision: str) -> None:
        self.check_right(repo_id)
        _, known = self.files(kind, repo_id, revision)
        answers = []
        for file in json.loads(self.body)["files"]:
            name = file["path"]
            large = name.endswith((".safetensors", ".npz", ".model")) or file["size"] > 2**20
            oid = known[name].oid() if name in known and known[name].large == large else None
            mode = "lfs" if large else "regular"
            answers.append({"path": name, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.reply({"files": answers})

    def large_files(self, repo_id: str, kind: str | None) -> None:
        self.check_right(repo_id)
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            stored = wanted["oid"] in self.server.large
            href = {"href": f"{self.server.url}/lfs/{wanted['oid']}"}
            objects.append(wanted if stored else {**wanted, "actions": {"upload": href}})
        self.reply({"transfer": "basic", "objects": objects})

    def store(self, oid: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise Refused(400, "content does not fit its hash")
        self.server.large[oid] = self.body
        self.reply({})

    def commit(self, kind: str, repo_id: str, revision: str) -> None:
        self.check_right(repo_id)
        _, known = self.files(kind, repo_id, revision)
        files = dict(known)
        for line in self.body.splitlines():
            key, value = (json.loads(line)[name] for name in ("key", "value"))
            if key == "file":
                files[value["path"]] = File(base64.b64decode(value["content"]), large=False)
            elif key == "lfsFile":
                files[value["path"]] = File(self.server.large[value["oid"]], large=True)
            elif key == "deletedFile":
                del files[value["path"]]
        sha = self.repo(kind, repo_id).commit(revision, files)
        self.reply({"commitUrl": f"{self.server.url}/{repo_id}/commit/{sha}", "commitOid": sha})

    def info(self, kind: str, repo_id: str, revision: str | None) -> None:
        sha, files = self.files(kind, repo_id, revision or "main")
        private = self.repo(kind, repo_id).private
        siblings = [{"rfilename": name} for name in sorted(files)]
        self.reply({"_id": repo_id, "id": repo_id, "sha": sha, "private": private, "tags": [], "siblings": siblings})

    def tree(self, kind: str, repo_id: str, revision: str, folder: str | None) -> None:
        _, files = self.files(kind, repo_id, revision)
        rows = []
        for name, file in sorted(files.items()):
            if name.startswith(f"{folder}/" if folder else ""):
                size = len(file.content)
                row = {"type": "file", "path": name, "size": size, "oid": file.oid()}
                rows.append({**row, "lfs": {"oid": file.oid(), "size": size, "pointerSize": 1}} if file.large else row)
        if folder and not rows:
            raise Refused(404, "no such folder", X_Error_Code="EntryNotFound")
        self.reply(rows)

    def resolve(self, kind: str | None, repo_id: str, revision: str, name: str) -> None:
        sha, files = self.files(kind or "models", repo_id, revision)
        if name not in files:
            raise Refused(404, "Entry not found", X_Error_Code="EntryNotFound", X_Repo_Commit=sha)
        headers = {"X-Repo-Commit": sha, "ETag": f'"{files[name].oid()}"'}
        if files[name].large:
            size = str(len(files[name].content))
            headers |= {"X-Linked-Etag": f'"{files[name].oid()}"', "X-Linked-Size": size}
        self.reply(files[name].content, headers=headers)


KIND, REPO, REVISION = "(?P<kind>models|spaces)", "(?P<repo_id>[^/]+/[^/]+)", "(?P<revision>[^/]+)"
ROUTES = {
    "/api/whoami-v2": Handler.who,
    "/api/repos/create": Handler.create,
    "/api/validate-yaml": Handler.validate,
    f"/api/{KIND}/{REPO}/branch/(?P<branch>.+)": Handler.branch,
    f"/api/{KIND}/{REPO}/preupload/{REVISION}": Handler.preupload,
    f"/api/{KIND}/{REPO}/commit/{REVISION}": Handler.commit,
    f"/api/{KIND}/{REPO}/tree/{REVISION}(?:/(?P<folder>.+))?": Handler.tree,
    f"/api/{KIND}/{REPO}(?:/revision/{REVISION})?": Handler.info,
    f"/(?:{KIND}/)?{REPO}\\.git/info/lfs/objects/batch": Handler.large_files,
    "/lfs/(?P<oid>[0-9a-f]{64})": Handler.store,
    f"/(?:{KIND}/)?{REPO}/resolve/{REVISION}/(?P<name>.+)": Handler.resolve,
}
