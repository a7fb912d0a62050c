"""LoRA training of the default base: packing, a lean Llama, the loop, and the record of a run."""
