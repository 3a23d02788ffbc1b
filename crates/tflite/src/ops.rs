//! The ops of TensorFlow Lite that are written and read here, with their numbers in the published schema.

macro_rules! op_codes {
    ($( $(#[doc = $doc:literal])? $name:ident = $code:literal, $text:literal, $options:literal; )+) => {
        /// A built-in op of TensorFlow Lite.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum OpCode {
            $( $(#[doc = $doc])? $name = $code, )+
        }

        impl OpCode {
            /// Every op that is known here.
            pub const ALL: &[OpCode] = &[$( OpCode::$name, )+];

            /// Its name in the schema.
            pub fn name(self) -> &'static str {
                match self { $( OpCode::$name => $text, )+ }
            }

            /// The op of a number.
            pub fn of(code: i32) -> Option<OpCode> {
                match code { $( $code => Some(OpCode::$name), )+ _ => None }
            }

            /// The number of the table of its options in the schema's union.
            pub(crate) fn options(self) -> u8 {
                match self { $( OpCode::$name => $options, )+ }
            }
        }
    };
}

op_codes! {
    Add = 0, "ADD", 11;
    AveragePool2d = 1, "AVERAGE_POOL_2D", 5;
    Concatenation = 2, "CONCATENATION", 10;
    Conv2d = 3, "CONV_2D", 1;
    DepthwiseConv2d = 4, "DEPTHWISE_CONV_2D", 2;
    Dequantize = 6, "DEQUANTIZE", 38;
    Floor = 8, "FLOOR", 0;
    FullyConnected = 9, "FULLY_CONNECTED", 8;
    Logistic = 14, "LOGISTIC", 0;
    MaxPool2d = 17, "MAX_POOL_2D", 5;
    Mul = 18, "MUL", 21;
    Relu = 19, "RELU", 0;
    ReluN1To1 = 20, "RELU_N1_TO_1", 0;
    Relu6 = 21, "RELU6", 0;
    Reshape = 22, "RESHAPE", 17;
    ResizeBilinear = 23, "RESIZE_BILINEAR", 15;
    Softmax = 25, "SOFTMAX", 9;
    Tanh = 28, "TANH", 0;
    Pad = 34, "PAD", 22;
    Gather = 36, "GATHER", 23;
    Transpose = 39, "TRANSPOSE", 26;
    Mean = 40, "MEAN", 27;
    Sub = 41, "SUB", 28;
    Div = 42, "DIV", 29;
    StridedSlice = 45, "STRIDED_SLICE", 32;
    Exp = 47, "EXP", 33;
    TopK = 48, "TOPK_V2", 34;
    Split = 49, "SPLIT", 35;
    LogSoftmax = 50, "LOG_SOFTMAX", 36;
    Cast = 53, "CAST", 37;
    Maximum = 55, "MAXIMUM", 39;
    ArgMax = 56, "ARG_MAX", 40;
    Minimum = 57, "MINIMUM", 39;
    Less = 58, "LESS", 41;
    Neg = 59, "NEG", 42;
    PadV2 = 60, "PADV2", 43;
    Greater = 61, "GREATER", 44;
    GreaterEqual = 62, "GREATER_EQUAL", 45;
    LessEqual = 63, "LESS_EQUAL", 46;
    Slice = 65, "SLICE", 48;
    Sin = 66, "SIN", 0;
    TransposeConv = 67, "TRANSPOSE_CONV", 49;
    Equal = 71, "EQUAL", 53;
    NotEqual = 72, "NOT_EQUAL", 54;
    Log = 73, "LOG", 0;
    Sum = 74, "SUM", 27;
    Sqrt = 75, "SQRT", 0;
    Rsqrt = 76, "RSQRT", 0;
    Pow = 78, "POW", 56;
    ReduceProd = 81, "REDUCE_PROD", 27;
    ReduceMax = 82, "REDUCE_MAX", 27;
    LogicalOr = 84, "LOGICAL_OR", 60;
    OneHot = 85, "ONE_HOT", 61;
    LogicalAnd = 86, "LOGICAL_AND", 62;
    LogicalNot = 87, "LOGICAL_NOT", 63;
    ReduceMin = 89, "REDUCE_MIN", 27;
    Square = 92, "SQUARE", 66;
    ResizeNearestNeighbor = 97, "RESIZE_NEAREST_NEIGHBOR", 74;
    LeakyRelu = 98, "LEAKY_RELU", 75;
    SquaredDifference = 99, "SQUARED_DIFFERENCE", 76;
    Abs = 101, "ABS", 78;
    SplitV = 102, "SPLIT_V", 79;
    Reverse = 105, "REVERSE_V2", 81;
    Cos = 108, "COS", 84;
    Quantize = 114, "QUANTIZE", 89;
    Select = 123, "SELECT_V2", 98;
    BatchMatMul = 126, "BATCH_MATMUL", 101;
    CumSum = 128, "CUMSUM", 102;
    BroadcastTo = 130, "BROADCAST_TO", 104;
    Gelu = 150, "GELU", 116;
    Sign = 158, "SIGN", 123;
}

impl std::fmt::Display for OpCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
