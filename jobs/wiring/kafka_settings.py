"""How Kafka is reached: one description for Flink's connectors and for our own clients."""

import re
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

DEFAULT_SERVERS: Final = "localhost:9092"
_SERVER: Final = re.compile(r"(?:\[([^\[\]]+)\]|[^\s:/@\[\]]+):([0-9]{1,5})", re.ASCII)
"""A name or an IPv4 address, or an IPv6 address in brackets, and a port."""


class KafkaSettings(BaseModel):
    """A cluster, and who we are to it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    servers: str = Field(DEFAULT_SERVERS, description="bootstrap servers, host:port, by commas")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="how the connection is secured"
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "SCRAM-SHA-512", description="how we say who we are, with a SASL protocol"
    )
    sasl_username: str | None = Field(None, description="who we are")
    sasl_password: SecretStr | None = Field(None, description="our password")
    ssl_ca: Path | None = Field(None, description="PEM file of the authority that signed the brokers' certificates")

    @field_validator("servers")
    @classmethod
    def _hosts_and_ports(cls, servers: str) -> str:
        """Each as the clients of Java and Python both take it, without the spaces around it."""
        found = [server.strip() for server in servers.split(",")]
        for server in found:
            if not _is_host_and_port(server):
                raise ValueError(f"{server!r} is not HOST:PORT, such as broker:9092 or [::1]:9092; several by commas")
        return ",".join(found)

    @model_validator(mode="after")
    def _complete(self) -> "KafkaSettings":
        if self._uses_sasl and not (self.sasl_username and self.sasl_password):
            raise ValueError(f"{self.security_protocol} needs sasl_username and sasl_password")
        for name in ("sasl_username", "sasl_password"):
            value = getattr(self, name)
            text = value.get_secret_value() if isinstance(value, SecretStr) else value
            if text and any(character in text for character in "\"'\\\n;"):
                raise ValueError(f"{name} may have no quote, backslash, semicolon or line break")
        return self

    @property
    def _uses_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL")

    def client_options(self) -> dict[str, Any]:
        """Arguments of kafka-python's clients."""
        options: dict[str, Any] = {
            "bootstrap_servers": self.servers.split(","),
            "security_protocol": self.security_protocol,
        }
        if self._uses_sasl and self.sasl_password:
            options |= {
                "sasl_mechanism": self.sasl_mechanism,
                "sasl_plain_username": self.sasl_username,
                "sasl_plain_password": self.sasl_password.get_secret_value(),
            }
        if self.ssl_ca:
            options["ssl_cafile"] = str(self.ssl_ca)
        return options

    def flink_properties(self) -> dict[str, str]:
        """Properties of Flink's connector, without the prefix that a table gives them."""
        options = {"bootstrap.servers": self.servers, "security.protocol": self.security_protocol}
        if self._uses_sasl and self.sasl_password:
            module = "plain.PlainLoginModule" if self.sasl_mechanism == "PLAIN" else "scram.ScramLoginModule"
            options |= {
                "sasl.mechanism": self.sasl_mechanism,
                "sasl.jaas.config": f"org.apache.kafka.common.security.{module} required "
                f'username="{self.sasl_username}" password="{self.sasl_password.get_secret_value()}";',
            }
        if self.ssl_ca:
            options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.ssl_ca)}
        return options


def _is_host_and_port(server: str) -> bool:
    match = _SERVER.fullmatch(server)
    if match is None or not 1 <= int(match[2]) <= 65_535:
        return False
    if match[1] is not None:
        try:
            IPv6Address(match[1])
        except ValueError:
            return False
    return True
