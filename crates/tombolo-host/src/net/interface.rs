//! One network interface: its address, size of frames and state.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::{Name, name_of, told};

/// An interface, by name, in the namespace of the thread that opened it.
#[derive(Debug)]
pub struct Interface {
    socket: OwnedFd,
    /// To the kernel's routing (rtnetlink).
    routing: OwnedFd,
    name: Name,
    text: String,
}

impl Interface {
    /// Finds an interface.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn open(name: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        // Protocol 0 is that of the routing.
        let routing = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        let interface = Self { socket, routing, name: name_of(name)?, text: name.to_owned() };
        interface.index()?;
        Ok(interface)
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.text
    }

    fn request(&self) -> libc::ifreq {
        // SAFETY: all bytes zero are a valid `ifreq`: a name without bytes, and an address of no family.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_name = self.name;
        request
    }

    fn call(&self, code: libc::c_ulong, request: &mut libc::ifreq, what: &str) -> io::Result<()> {
        // SAFETY: every code that is passed here takes an `ifreq`, reads and writes no more than that, and keeps no
        // pointer.
        if unsafe { libc::ioctl(self.socket.as_raw_fd(), code as _, std::ptr::from_mut(request)) } < 0 {
            return Err(told(format_args!("{}: {what}", self.text), &io::Error::last_os_error()));
        }
        Ok(())
    }

    /// The number of the interface.
    ///
    /// # Errors
    /// It is gone.
    pub fn index(&self) -> io::Result<u32> {
        let mut request = self.request();
        self.call(libc::SIOCGIFINDEX, &mut request, "no such interface")?;
        // SAFETY: SIOCGIFINDEX has written this member.
        let index = unsafe { request.ifr_ifru.ifru_ifindex };
        Ok(index.cast_unsigned())
    }

    /// Whether there is an interface of this number, under whatever name.
    pub fn has_index(&self, index: u32) -> bool {
        let mut request = self.request();
        request.ifr_ifru.ifru_ifindex = index.cast_signed();
        self.call(libc::SIOCGIFNAME, &mut request, "it is gone").is_ok()
    }

    /// Takes the name that the interface of a number has now.
    ///
    /// # Errors
    /// There is none of this number.
    pub fn rename(&mut self, index: u32) -> io::Result<()> {
        let mut request = self.request();
        request.ifr_ifru.ifru_ifindex = index.cast_signed();
        self.call(libc::SIOCGIFNAME, &mut request, "it is gone")?;
        self.name = request.ifr_name;
        let bytes: Vec<u8> =
            self.name.iter().map(|byte| byte.cast_unsigned()).take_while(|byte| *byte != 0).collect();
        self.text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(())
    }

    /// Its hardware address.
    ///
    /// # Errors
    /// It is gone.
    pub fn mac(&self) -> io::Result<[u8; 6]> {
        let mut request = self.request();
        self.call(libc::SIOCGIFHWADDR, &mut request, "its hardware address")?;
        // SAFETY: SIOCGIFHWADDR has written this member.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        let mut mac = [0; 6];
        for (byte, from) in mac.iter_mut().zip(address.sa_data) {
            *byte = from.cast_unsigned();
        }
        Ok(mac)
    }

    /// Gives it a hardware address.
    ///
    /// # Errors
    /// This process may not, or the address is no good.
    pub fn set_mac(&self, mac: [u8; 6]) -> io::Result<()> {
        let mut request = self.request();
        let mut address = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data: [0; 14] };
        for (place, byte) in address.sa_data.iter_mut().zip(mac) {
            *place = byte.cast_signed();
        }
        request.ifr_ifru.ifru_hwaddr = address;
        self.call(libc::SIOCSIFHWADDR, &mut request, "cannot set its hardware address")
    }

    /// The most bytes behind an Ethernet header.
    ///
    /// # Errors
    /// It is gone.
    pub fn mtu(&self) -> io::Result<u32> {
        let mut request = self.request();
        self.call(libc::SIOCGIFMTU, &mut request, "its MTU")?;
        // SAFETY: SIOCGIFMTU has written this member.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        Ok(mtu.cast_unsigned())
    }

    /// Sets the most bytes behind an Ethernet header.
    ///
    /// # Errors
    /// This process may not, or the interface takes no such frames.
    pub fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        let mut request = self.request();
        request.ifr_ifru.ifru_mtu = mtu.cast_signed();
        self.call(libc::SIOCSIFMTU, &mut request, "cannot set its MTU")
    }

    fn flags(&self) -> io::Result<i32> {
        let mut request = self.request();
        self.call(libc::SIOCGIFFLAGS, &mut request, "its flags")?;
        // SAFETY: SIOCGIFFLAGS has written this member.
        Ok(i32::from(unsafe { request.ifr_ifru.ifru_flags }))
    }

    /// Whether it is up and has a carrier.
    ///
    /// # Errors
    /// It is gone.
    pub fn is_running(&self) -> io::Result<bool> {
        Ok(self.flags()? & libc::IFF_RUNNING != 0)
    }

    /// Switches it on.
    ///
    /// # Errors
    /// This process may not.
    pub fn set_up(&self) -> io::Result<()> {
        let flags = self.flags()? | libc::IFF_UP;
        let mut request = self.request();
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        self.call(libc::SIOCSIFFLAGS, &mut request, "cannot be switched on")
    }

    /// Sets the bytes of the longest segment that the kernel hands over at once.
    ///
    /// # Errors
    /// This process may not, or the interface cannot.
    pub fn set_segment_bytes(&self, bytes: u32) -> io::Result<()> {
        const GSO_MAX_SIZE: u16 = 41;
        self.change(&[(GSO_MAX_SIZE, &bytes.to_ne_bytes())], "cannot set its longest segment")
    }

    /// Moves it to another network namespace, where it has this name.
    ///
    /// # Errors
    /// This process may not, or there is one of that name: it is there then, with another name.
    pub fn move_to(self, namespace: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        name_of(name)?;
        let descriptor = namespace.as_raw_fd().to_ne_bytes();
        let text = [name.as_bytes(), &[0]].concat();
        let attributes = [(libc::IFLA_NET_NS_FD, &descriptor[..]), (libc::IFLA_IFNAME, &text)];
        self.change(&attributes, &format!("cannot be moved to a namespace as {name}"))
    }

    /// Changes the interface by a message to the kernel's routing.
    fn change(&self, attributes: &[(u16, &[u8])], what: &str) -> io::Result<()> {
        let mut message = Vec::new();
        // nlmsghdr: length, type, flags, number, sender.
        message.extend([0; 4]);
        message.extend(libc::RTM_SETLINK.to_ne_bytes());
        message.extend(((libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16).to_ne_bytes());
        message.extend([0; 8]);
        // ifinfomsg: family, type, index, flags, which flags change.
        message.extend([0; 4]);
        message.extend(self.index()?.to_ne_bytes());
        message.extend([0; 8]);
        // rtattr: length, type, value, up to a multiple of four bytes.
        for (kind, value) in attributes {
            message.extend((4 + value.len() as u16).to_ne_bytes());
            message.extend(kind.to_ne_bytes());
            message.extend(*value);
            message.resize(message.len().next_multiple_of(4), 0);
        }
        let length = (message.len() as u32).to_ne_bytes();
        message[..4].copy_from_slice(&length);
        rustix::net::send(&self.routing, &message, SendFlags::empty())?;
        let mut answer = [0; 1024];
        let (_, length) = rustix::net::recv(&self.routing, &mut answer, RecvFlags::empty())?;
        // nlmsghdr, and an error number: 0 is an acknowledgement.
        let number = answer.get(..length).and_then(|answer| answer.get(16..20)?.first_chunk::<4>().copied());
        match number.map(i32::from_ne_bytes) {
            Some(0) => Ok(()),
            Some(error) => {
                Err(told(format_args!("{}: {what}", self.text), &io::Error::from_raw_os_error(-error)))
            }
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}
