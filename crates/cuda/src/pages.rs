//! Turns physical memory of a card into pages that can be mapped wherever they are needed.

use cudarc::driver::sys;

use crate::Cuda;
use crate::card::{Card, cu};
use crate::error::Error;

/// What physical memory is asked for: plain memory of one card.
fn kind(card: &Card) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: place(card),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn place(card: &Card) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: card.ordinal as i32 }
}

/// The size of a page: the least that the card maps by itself, 2 MiB as a rule.
pub(crate) fn page_bytes(card: &Card) -> Result<usize, Error> {
    card.enter()?;
    let mut bytes = 0;
    let (kind, least) = (kind(card), sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    // SAFETY: the addresses are of a number and of a description.
    unsafe { cu!(cuMemGetAllocationGranularity(&mut bytes, &kind, least)) }?;
    Ok(bytes.max(1))
}

/// A piece of physical memory, mapped nowhere by itself.
#[derive(Debug)]
pub(crate) struct Page {
    cuda: Cuda,
    handle: sys::CUmemGenericAllocationHandle,
    pub bytes: usize,
}

impl Page {
    /// Takes so many bytes, a multiple of the page size.
    pub(crate) fn new(cuda: &Cuda, bytes: usize) -> Result<Page, Error> {
        let card = cuda.card("a page")?;
        card.enter()?;
        let (mut handle, kind) = (0, kind(card));
        // SAFETY: the addresses are of a handle and of a description.
        let status = unsafe { sys::cuMemCreate(&mut handle, bytes, &kind, 0) };
        if status == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let (free, _) = card.memory()?;
            return Err(Error::OutOfMemory { bytes, free });
        }
        crate::card::check("cuMemCreate", status)?;
        Ok(Page { cuda: cuda.clone(), handle, bytes })
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if self.cuda.card("a page").and_then(Card::enter).is_err() {
            return;
        }
        // SAFETY: nobody has the handle any more; what is still mapped stays until it is unmapped.
        unsafe {
            let _ = sys::cuMemRelease(self.handle);
        }
    }
}

/// A range of addresses, reserved but not backed by memory until pages are mapped into it.
#[derive(Debug)]
pub(crate) struct Range {
    cuda: Cuda,
    start: u64,
    bytes: usize,
}

impl Range {
    /// Reserves so many bytes of addresses, a multiple of the page size.
    pub(crate) fn new(cuda: &Cuda, bytes: usize) -> Result<Range, Error> {
        let card = cuda.card("a range of addresses")?;
        card.enter()?;
        let mut start = 0;
        // SAFETY: the address is of a number; no place is asked for.
        unsafe { cu!(cuMemAddressReserve(&mut start, bytes, 0, 0, 0)) }?;
        Ok(Range { cuda: cuda.clone(), start, bytes })
    }

    /// The first address.
    pub(crate) fn at(&self) -> *mut u8 {
        self.start as *mut u8
    }

    /// The bytes of addresses.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Backs the addresses from `offset` on by a page.
    pub(crate) fn map(&self, offset: usize, page: &Page) -> Result<(), Error> {
        let card = self.cuda.card("a range of addresses")?;
        card.enter()?;
        let start = self.start + offset as u64;
        let access = sys::CUmemAccessDesc {
            location: place(card),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the range is reserved and nothing is mapped there; callers keep account of that.
        unsafe {
            cu!(cuMemMap(start, page.bytes, 0, page.handle, 0))?;
            let allowed = cu!(cuMemSetAccess(start, page.bytes, &access, 1));
            if allowed.is_err() {
                let _ = sys::cuMemUnmap(start, page.bytes);
            }
            allowed
        }
    }

    /// Takes the memory away from addresses; nothing may use them any more.
    pub(crate) fn unmap(&self, offset: usize, bytes: usize) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        self.cuda.card("a range of addresses")?.enter()?;
        // SAFETY: these addresses were mapped whole pages at a time.
        unsafe { cu!(cuMemUnmap(self.start + offset as u64, bytes)) }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: owners unmap before they let go. A drop cannot report a refusal.
        unsafe {
            let _ = sys::cuMemAddressFree(self.start, self.bytes);
        }
    }
}
