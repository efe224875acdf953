"""How Kafka is reached: one description for Flink's connectors and for our own clients."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator


class KafkaSettings(BaseModel):
    """A cluster, and who we are to it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    servers: str = Field("localhost:9092", min_length=1, description="bootstrap servers, host:port, by commas")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="how the connection is secured"
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "SCRAM-SHA-512", description="how we say who we are, with a SASL protocol"
    )
    sasl_username: str | None = Field(None, description="who we are")
    sasl_password: SecretStr | None = Field(None, description="our password")
    ssl_ca: Path | None = Field(None, description="PEM file of the authority that signed the brokers' certificates")

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
