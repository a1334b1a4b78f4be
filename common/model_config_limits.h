/* model_config_limits: the most of each, whether read from a file or filled in by hand. */
#ifndef TANDEM_COMMON_MODEL_CONFIG_LIMITS_H
#define TANDEM_COMMON_MODEL_CONFIG_LIMITS_H

enum {
    MAX_WIDTH = 1 << 16,
    MAX_HEADS = 1 << 10,
    MAX_HEAD_DIM = 1 << 10,
    MAX_EXPERTS = 1 << 10,
    MAX_VOCAB = 1 << 24,
    MAX_POSITIONS = 1 << 24,
};

#endif
