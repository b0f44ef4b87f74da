"""What a job may do: values that are validated once and compiled to a `SandboxSpec`; nothing here touches the host."""
