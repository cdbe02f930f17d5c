//! The functions of NVRTC and cuBLASLt that are used, each taken from the very library that was opened.
//!
//! Their types are cudarc's. Its functions would look the libraries up by name once more, and might find others.

use super::library::{self, Lib};
use cudarc::cublaslt::sys as lt;
use cudarc::nvrtc::sys as nvrtc;
use plimsoll_base::Result;
use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

macro_rules! table {
    ($(#[$doc:meta])* $table:ident of $lib:ident { $($function:ident($($type:ty),*) -> $result:ty;)* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        #[allow(non_snake_case)] // The names of the headers.
        pub(crate) struct $table {
            $(pub(crate) $function: unsafe extern "C" fn($($type),*) -> $result,)*
        }

        impl $table {
            /// Opens the library, unless it is open.
            ///
            /// Errors: `cuda-library-missing`.
            pub(crate) fn open() -> Result<&'static $table> {
                static TABLE: OnceLock<$table> = OnceLock::new();
                if let Some(table) = TABLE.get() {
                    return Ok(table);
                }
                let library = library::open(Lib::$lib)?;
                // SAFETY: the signatures are those of the library's headers, alike in CUDA 12 and 13.
                let table = unsafe { $table { $($function: library.function(stringify!($function))?,)* } };
                Ok(TABLE.get_or_init(|| table))
            }
        }
    };
}

table! {
    /// The compiler.
    Nvrtc of Nvrtc {
        nvrtcVersion(*mut c_int, *mut c_int) -> nvrtc::nvrtcResult;
        nvrtcGetNumSupportedArchs(*mut c_int) -> nvrtc::nvrtcResult;
        nvrtcGetSupportedArchs(*mut c_int) -> nvrtc::nvrtcResult;
        nvrtcCreateProgram(
            *mut nvrtc::nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
        ) -> nvrtc::nvrtcResult;
        nvrtcCompileProgram(nvrtc::nvrtcProgram, c_int, *const *const c_char) -> nvrtc::nvrtcResult;
        nvrtcGetCUBINSize(nvrtc::nvrtcProgram, *mut usize) -> nvrtc::nvrtcResult;
        nvrtcGetCUBIN(nvrtc::nvrtcProgram, *mut c_char) -> nvrtc::nvrtcResult;
        nvrtcGetProgramLogSize(nvrtc::nvrtcProgram, *mut usize) -> nvrtc::nvrtcResult;
        nvrtcGetProgramLog(nvrtc::nvrtcProgram, *mut c_char) -> nvrtc::nvrtcResult;
        nvrtcDestroyProgram(*mut nvrtc::nvrtcProgram) -> nvrtc::nvrtcResult;
    }
}

table! {
    /// Products of bf16 matrices.
    CublasLt of CublasLt {
        cublasLtGetVersion() -> usize;
        cublasLtCreate(*mut lt::cublasLtHandle_t) -> lt::cublasStatus_t;
        cublasLtDestroy(lt::cublasLtHandle_t) -> lt::cublasStatus_t;
        cublasLtMatrixLayoutCreate(
            *mut lt::cublasLtMatrixLayout_t, lt::cudaDataType_t, u64, u64, i64
        ) -> lt::cublasStatus_t;
        cublasLtMatrixLayoutDestroy(lt::cublasLtMatrixLayout_t) -> lt::cublasStatus_t;
        cublasLtMatmulDescCreate(
            *mut lt::cublasLtMatmulDesc_t, lt::cublasComputeType_t, lt::cudaDataType_t
        ) -> lt::cublasStatus_t;
        cublasLtMatmulDescDestroy(lt::cublasLtMatmulDesc_t) -> lt::cublasStatus_t;
        cublasLtMatmulDescSetAttribute(
            lt::cublasLtMatmulDesc_t, lt::cublasLtMatmulDescAttributes_t, *const c_void, usize
        ) -> lt::cublasStatus_t;
        cublasLtMatmulPreferenceCreate(*mut lt::cublasLtMatmulPreference_t) -> lt::cublasStatus_t;
        cublasLtMatmulPreferenceDestroy(lt::cublasLtMatmulPreference_t) -> lt::cublasStatus_t;
        cublasLtMatmulPreferenceSetAttribute(
            lt::cublasLtMatmulPreference_t, lt::cublasLtMatmulPreferenceAttributes_t, *const c_void, usize
        ) -> lt::cublasStatus_t;
        cublasLtMatmulAlgoGetHeuristic(
            lt::cublasLtHandle_t, lt::cublasLtMatmulDesc_t, lt::cublasLtMatrixLayout_t, lt::cublasLtMatrixLayout_t,
            lt::cublasLtMatrixLayout_t, lt::cublasLtMatrixLayout_t, lt::cublasLtMatmulPreference_t, c_int,
            *mut lt::cublasLtMatmulHeuristicResult_t, *mut c_int
        ) -> lt::cublasStatus_t;
        cublasLtMatmul(
            lt::cublasLtHandle_t, lt::cublasLtMatmulDesc_t, *const c_void, *const c_void, lt::cublasLtMatrixLayout_t,
            *const c_void, lt::cublasLtMatrixLayout_t, *const c_void, *const c_void, lt::cublasLtMatrixLayout_t,
            *mut c_void, lt::cublasLtMatrixLayout_t, *const lt::cublasLtMatmulAlgo_t, *mut c_void, usize,
            lt::cudaStream_t
        ) -> lt::cublasStatus_t;
    }
}
