// The table that the program calls through.

#define OWN_KERNEL(name, Args) .name = name,

const Kernels kTable = {
    .name = ISA_NAME,
    .tile_int8 = LARGEST_TILE_INT8,
    .tile_float = LARGEST_TILE_FLOAT,
    .panels_at_once = PANELS_AT_ONCE,
    .integer_scales = INTEGER_SCALES,
    .screened_rows = SCREENED_ROWS,
    .rows_to_a_whole_one = ROWS_TO_A_WHOLE_ONE,
    .attention_rows = ATTENTION_ROWS,
    .prepare = prepare_rows,
    .linear_scratch = linear_scratch,
    .linear = linear,
    .screen_bounds = screen_bounds,
    .screen_row = screen_row,
    .screen = screen,
    .row_product = row_product,
    .norm = norm_row,
    .add = add_rows,
    .gate = gate_row,
    .axpy = axpy_row,
    .embed = embed_row,
    .softmax = softmax_row,
    .sigmoid = sigmoid_row,
    OWN_KERNELS(OWN_KERNEL)
    .attention_scratch = attention_scratch,
    .attention = attention,
    .attention_merge = attention_merge,
    .sample = &kSamplePasses,
};
