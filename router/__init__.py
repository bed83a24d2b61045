"""The routing core: policy, classification, route table, decisions. Pure: (state, input) -> values with reasons."""
