//! Untrusted model files in, checked offsets and bytes out: safetensors, GGUF, config.json, the hub cache, wheels.
