//! The operators of the published schema that can be run: code, name, newest known version and type of options, in one table; and the types
//! of elements.

/// An operator, by its name in the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Code {
    Abs,
    Add,
    ArgMax,
    AveragePool,
    BatchMatmul,
    Cast,
    Concatenation,
    Conv,
    DepthToSpace,
    Depthwise,
    Dequantize,
    Div,
    Elu,
    Exp,
    ExpandDims,
    FullyConnected,
    Gather,
    Gelu,
    HardSwish,
    LeakyRelu,
    Log,
    LogSoftmax,
    Logistic,
    MaxPool,
    Maximum,
    Mean,
    Minimum,
    MirrorPad,
    Mul,
    Neg,
    Pack,
    Pad,
    PadV2,
    Prelu,
    Quantize,
    ReduceMax,
    Relu,
    Relu6,
    ReluN1To1,
    Relu0To1,
    Reshape,
    ResizeBilinear,
    ResizeNearest,
    Rsqrt,
    Shape,
    Slice,
    Softmax,
    SpaceToDepth,
    Split,
    Sqrt,
    Square,
    Squeeze,
    StridedSlice,
    Sub,
    Sum,
    Tanh,
    Transpose,
    TransposeConv,
    Unpack,
}

/// A row of the table.
#[derive(Debug)]
pub struct Info {
    /// Its number in `BuiltinOperator`.
    pub number: i32,
    /// Its name there.
    pub name: &'static str,
    /// The newest version whose meaning is known here.
    pub version: i32,
    /// The number of its options in the union `BuiltinOptions`; zero where it has none.
    pub options: u8,
    /// Which it is.
    pub code: Code,
}

const fn row(number: i32, name: &'static str, version: i32, options: u8, code: Code) -> Info {
    Info { number, name, version, options, code }
}

/// All operators that can be run.
pub const OPS: &[Info] = &[
    row(0, "ADD", 5, 11, Code::Add),
    row(1, "AVERAGE_POOL_2D", 3, 5, Code::AveragePool),
    row(2, "CONCATENATION", 5, 10, Code::Concatenation),
    row(3, "CONV_2D", 8, 1, Code::Conv),
    row(4, "DEPTHWISE_CONV_2D", 7, 2, Code::Depthwise),
    row(5, "DEPTH_TO_SPACE", 2, 94, Code::DepthToSpace),
    row(6, "DEQUANTIZE", 6, 38, Code::Dequantize),
    row(9, "FULLY_CONNECTED", 14, 8, Code::FullyConnected),
    row(14, "LOGISTIC", 3, 0, Code::Logistic),
    row(17, "MAX_POOL_2D", 3, 5, Code::MaxPool),
    row(18, "MUL", 7, 21, Code::Mul),
    row(19, "RELU", 3, 0, Code::Relu),
    row(20, "RELU_N1_TO_1", 1, 0, Code::ReluN1To1),
    row(21, "RELU6", 3, 0, Code::Relu6),
    row(22, "RESHAPE", 2, 17, Code::Reshape),
    row(23, "RESIZE_BILINEAR", 4, 15, Code::ResizeBilinear),
    row(25, "SOFTMAX", 3, 9, Code::Softmax),
    row(26, "SPACE_TO_DEPTH", 2, 19, Code::SpaceToDepth),
    row(28, "TANH", 3, 0, Code::Tanh),
    row(34, "PAD", 4, 22, Code::Pad),
    row(36, "GATHER", 7, 23, Code::Gather),
    row(39, "TRANSPOSE", 6, 26, Code::Transpose),
    row(40, "MEAN", 3, 27, Code::Mean),
    row(41, "SUB", 5, 28, Code::Sub),
    row(42, "DIV", 2, 29, Code::Div),
    row(43, "SQUEEZE", 2, 30, Code::Squeeze),
    row(45, "STRIDED_SLICE", 8, 32, Code::StridedSlice),
    row(47, "EXP", 2, 33, Code::Exp),
    row(49, "SPLIT", 4, 35, Code::Split),
    row(50, "LOG_SOFTMAX", 2, 36, Code::LogSoftmax),
    row(53, "CAST", 7, 37, Code::Cast),
    row(54, "PRELU", 1, 0, Code::Prelu),
    row(55, "MAXIMUM", 4, 39, Code::Maximum),
    row(56, "ARG_MAX", 3, 40, Code::ArgMax),
    row(57, "MINIMUM", 4, 39, Code::Minimum),
    row(59, "NEG", 1, 42, Code::Neg),
    row(60, "PADV2", 4, 43, Code::PadV2),
    row(65, "SLICE", 6, 48, Code::Slice),
    row(67, "TRANSPOSE_CONV", 5, 49, Code::TransposeConv),
    row(70, "EXPAND_DIMS", 1, 52, Code::ExpandDims),
    row(73, "LOG", 2, 0, Code::Log),
    row(74, "SUM", 2, 27, Code::Sum),
    row(75, "SQRT", 1, 0, Code::Sqrt),
    row(76, "RSQRT", 3, 0, Code::Rsqrt),
    row(77, "SHAPE", 1, 55, Code::Shape),
    row(82, "REDUCE_MAX", 3, 27, Code::ReduceMax),
    row(83, "PACK", 4, 59, Code::Pack),
    row(88, "UNPACK", 4, 64, Code::Unpack),
    row(92, "SQUARE", 1, 66, Code::Square),
    row(97, "RESIZE_NEAREST_NEIGHBOR", 4, 74, Code::ResizeNearest),
    row(98, "LEAKY_RELU", 2, 75, Code::LeakyRelu),
    row(100, "MIRROR_PAD", 3, 77, Code::MirrorPad),
    row(101, "ABS", 5, 78, Code::Abs),
    row(111, "ELU", 1, 0, Code::Elu),
    row(114, "QUANTIZE", 4, 89, Code::Quantize),
    row(117, "HARD_SWISH", 1, 91, Code::HardSwish),
    row(126, "BATCH_MATMUL", 5, 101, Code::BatchMatmul),
    row(150, "GELU", 2, 116, Code::Gelu),
    row(152, "RELU_0_TO_1", 1, 0, Code::Relu0To1),
];

/// Operators of the schema that cannot be run, by number, so that a refusal has their name.
pub const OTHERS: &[(i32, &str)] = &[
    (7, "EMBEDDING_LOOKUP"),
    (8, "FLOOR"),
    (11, "L2_NORMALIZATION"),
    (12, "L2_POOL_2D"),
    (13, "LOCAL_RESPONSE_NORMALIZATION"),
    (16, "LSTM"),
    (24, "RNN"),
    (27, "SVDF"),
    (32, "CUSTOM"),
    (35, "UNIDIRECTIONAL_SEQUENCE_RNN"),
    (37, "BATCH_TO_SPACE_ND"),
    (38, "SPACE_TO_BATCH_ND"),
    (44, "UNIDIRECTIONAL_SEQUENCE_LSTM"),
    (48, "TOPK_V2"),
    (51, "DELEGATE"),
    (52, "BIDIRECTIONAL_SEQUENCE_LSTM"),
    (58, "LESS"),
    (61, "GREATER"),
    (62, "GREATER_EQUAL"),
    (63, "LESS_EQUAL"),
    (64, "SELECT"),
    (66, "SIN"),
    (69, "TILE"),
    (71, "EQUAL"),
    (72, "NOT_EQUAL"),
    (78, "POW"),
    (79, "ARG_MIN"),
    (80, "FAKE_QUANT"),
    (81, "REDUCE_PROD"),
    (84, "LOGICAL_OR"),
    (85, "ONE_HOT"),
    (86, "LOGICAL_AND"),
    (87, "LOGICAL_NOT"),
    (89, "REDUCE_MIN"),
    (90, "FLOOR_DIV"),
    (91, "REDUCE_ANY"),
    (93, "ZEROS_LIKE"),
    (94, "FILL"),
    (95, "FLOOR_MOD"),
    (96, "RANGE"),
    (99, "SQUARED_DIFFERENCE"),
    (102, "SPLIT_V"),
    (103, "UNIQUE"),
    (104, "CEIL"),
    (105, "REVERSE_V2"),
    (106, "ADD_N"),
    (107, "GATHER_ND"),
    (108, "COS"),
    (109, "WHERE"),
    (110, "RANK"),
    (112, "REVERSE_SEQUENCE"),
    (116, "ROUND"),
    (118, "IF"),
    (119, "WHILE"),
    (122, "SCATTER_ND"),
    (123, "SELECT_V2"),
    (124, "DENSIFY"),
    (125, "SEGMENT_SUM"),
    (128, "CUMSUM"),
    (129, "CALL_ONCE"),
    (130, "BROADCAST_TO"),
    (131, "RFFT2D"),
    (132, "CONV_3D"),
    (140, "REDUCE_ALL"),
    (142, "VAR_HANDLE"),
    (143, "READ_VARIABLE"),
    (144, "ASSIGN_VARIABLE"),
    (151, "DYNAMIC_UPDATE_SLICE"),
];

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Type {
    F32,
    F16,
    I32,
    U8,
    I64,
    Bool,
    I8,
}

impl Type {
    /// The type of that number in `TensorType`.
    pub(crate) fn new(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::I32,
            3 => Self::U8,
            4 => Self::I64,
            6 => Self::Bool,
            9 => Self::I8,
            _ => return None,
        })
    }

    /// Its name: `float32`, `int8`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::I32 => "int32",
            Self::U8 => "uint8",
            Self::I64 => "int64",
            Self::Bool => "bool",
            Self::I8 => "int8",
        }
    }

    /// How many bytes an element takes.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 => 2,
            Self::I64 => 8,
            Self::U8 | Self::Bool | Self::I8 => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_in_order_and_name_an_operator_once() {
        assert!(OPS.windows(2).all(|pair| pair[0].number < pair[1].number));
        assert!(OTHERS.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(OTHERS.iter().all(|other| OPS.iter().all(|op| op.number != other.0 && op.name != other.1)));
    }
}
