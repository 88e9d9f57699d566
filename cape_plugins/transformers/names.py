"""The names of our types of model, and of their classes, which models.py makes."""

#: type → what transformers calls its tables of models → our class
TYPES = {
    "cape_llama": {
        "CONFIG": "CapeLlamaConfig",
        "MODEL": "CapeLlamaModel",
        "MODEL_FOR_CAUSAL_LM": "CapeLlamaForCausalLM",
        "MODEL_FOR_SEQUENCE_CLASSIFICATION": "CapeLlamaForSequenceClassification",
        "MODEL_FOR_QUESTION_ANSWERING": "CapeLlamaForQuestionAnswering",
        "MODEL_FOR_TOKEN_CLASSIFICATION": "CapeLlamaForTokenClassification",
    },
    "cape_eurobert": {
        "CONFIG": "CapeEuroBertConfig",
        "MODEL": "CapeEuroBertModel",
        "MODEL_FOR_MASKED_LM": "CapeEuroBertForMaskedLM",
        "MODEL_FOR_SEQUENCE_CLASSIFICATION": "CapeEuroBertForSequenceClassification",
        "MODEL_FOR_TOKEN_CLASSIFICATION": "CapeEuroBertForTokenClassification",
    },
}
