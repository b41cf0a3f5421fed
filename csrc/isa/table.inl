// The table that the program calls through.

const Kernels kTable = {
    ISA_NAME,        LARGEST_TILE_INT8, LARGEST_TILE_FLOAT, PANELS_AT_ONCE, INTEGER_SCALES, SCREENED_ROWS, ATTENTION_ROWS, prepare_rows, linear_scratch, linear,
    screen_bounds,   screen_row,        screen,            row_product,
    norm_row,        add_rows,          gate_row,           axpy_row,          embed_row,
    softmax_row,     sigmoid_row,       rotary_append,      latent_append,     attention_scratch, attention,
    attention_merge,   &kSamplePasses,
};
