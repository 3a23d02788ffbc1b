//! What a process takes of a device's memory, and what blocks will take of it: pages are the unit.

use plimsoll_device::Bytes;
use plimsoll_device::backend::ALIGNMENT;

use super::Device;

/// What the process takes of a device's own memory beside tensors: context, code, handles. None on the host.
pub(crate) fn own(device: &Device) -> Option<Bytes> {
    device.taken().map(|taken| taken.saturating_sub(device.memory_info().reserved))
}

/// What of that is code which was compiled for the device and is loaded now; none where there is no such code.
pub(crate) fn code(device: &Device) -> Option<Bytes> {
    device.libraries().iter().find(|row| row.name == plimsoll_cuda::CODE).map(|row| row.bytes)
}

/// Bytes rounded up to whole pages of a device.
pub(crate) fn whole_pages(device: &Device, bytes: Bytes) -> Bytes {
    Bytes(bytes.get().next_multiple_of(device.memory().page().get().max(1)))
}

/// Bytes rounded down to whole pages of a device.
pub(crate) fn full_pages(device: &Device, bytes: Bytes) -> Bytes {
    Bytes(bytes.get() - bytes.get() % device.memory().page().get().max(1))
}

/// What blocks of these sizes will take of a device's memory.
pub(crate) fn blocks(device: &Device, sizes: impl Iterator<Item = usize>) -> Bytes {
    let half = device.memory().page().get() / 2;
    let (mut large, mut small) = (Bytes::ZERO, Bytes::ZERO);
    for size in sizes {
        let size = Bytes::from(size.next_multiple_of(ALIGNMENT));
        if half > 0 && size.get() > half {
            large += whole_pages(device, size);
        } else {
            small += size;
        }
    }
    large + whole_pages(device, small)
}

/// Bytes rounded up to the alignment of an arena.
pub(crate) fn padded(bytes: usize) -> Bytes {
    bytes.next_multiple_of(ALIGNMENT).into()
}
