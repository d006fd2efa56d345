"""The administration API as commands call it."""

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path

import msgspec

from appliance.domain.access.secret_files import read_secret
from appliance.domain.tenants.bootstrap import ADMIN_TOKEN_FILE
from appliance.errors import ApplianceError, Conflict, Fault, Invalid
from appliance.settings import Settings, SettingsError, data_path

TIMEOUT_S = 60.0


class ApiError(ApplianceError):
    """The server refused, or did not answer; the message says which."""


def admin_token(settings: Settings, token_file: Path | None) -> str:
    """The token for the API: a file's, the settings', or the data directory's. Raises `SettingsError`."""
    path = token_file or data_path(settings) / ADMIN_TOKEN_FILE
    token = (None if token_file else settings.bootstrap_admin_token) or read_secret(path)
    if token is None:
        raise SettingsError(f"there is no admin token in {path}: name its file with --token-file")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise SettingsError(f"{path} holds no admin token: one is printable ASCII without spaces")
    return token


class AdminApi:
    """Calls `/api/v1` of one server."""

    def __init__(self, base_url: str, token: str) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise SettingsError(f"--server {base_url!r} is no URL: write it like http://127.0.0.1:8000")
        self._base_url = base_url.rstrip("/") + "/api/v1"
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def get[Answer](self, path: str, answer: type[Answer]) -> Answer:
        """GET. Raises `Invalid`, `Conflict`, `ApiError`."""
        return self._call(path, None, answer)

    def post[Answer](self, path: str, body: msgspec.Struct, answer: type[Answer]) -> Answer:
        """POST. Raises as `get`."""
        return self._call(path, msgspec.json.encode(body), answer)

    def _call[Answer](self, path: str, body: bytes | None, answer: type[Answer]) -> Answer:
        request = urllib.request.Request(self._base_url + path, body, self._headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return msgspec.json.decode(response.read(), type=answer)
        except urllib.error.HTTPError as error:
            raise _refusal(error) from error
        except (OSError, HTTPException, msgspec.DecodeError) as error:
            raise ApiError(f"{self._base_url} does not answer as Fairlane's API would: {getattr(error, 'reason', error)}") from error


def _refusal(answer: urllib.error.HTTPError) -> ApplianceError:
    """The server's own words as the error that they were there."""
    try:
        error = json.loads(answer.read())["error"]
        message, param = str(error["message"]), error.get("param")
        faults = msgspec.convert(error.get("faults", ()), tuple[Fault, ...])
    except (ValueError, KeyError, TypeError):
        return ApiError(f"the server answered {answer.code} {answer.reason}")
    if answer.code == 400:
        return Invalid(message, param=param, faults=faults)
    return (Conflict if answer.code == 409 else ApiError)(message, param=param)
