// What every page does: local times, live pieces over one stream, copy buttons. All of it is an addition: pages work without it.
"use strict";

// Swedish writes dates as ISO does, which sorts and lines up; the zone is the browser's.
const localTime = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" });

// Times come in UTC, which stays as the tooltip; `data-local` marks those that are done.
function showLocalTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]:not([data-local])")) {
    time.textContent = localTime.format(new Date(time.dateTime));
    time.dataset.local = "";
  }
}

// Make `old` like `fresh`, touching only what differs: focus, selection and a click that is under way survive. Elements with an id
// are found by it, others by their place.
function morph(old, fresh) {
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "data-local") old.removeAttribute(name);
  const wanted = [...fresh.childNodes];
  wanted.forEach((node, place) => {
    let there = old.childNodes[place];
    if (node.id) {
      const known = [...old.children].find((child) => child.id === node.id);
      if (known && known !== there) there = old.insertBefore(known, there);
    }
    if (!there) old.appendChild(node.cloneNode(true));
    else if (there.nodeType !== node.nodeType || there.nodeName !== node.nodeName || (there.id || "") !== (node.id || "")) {
      old.replaceChild(node.cloneNode(true), there);
    } else if (node.nodeType !== Node.ELEMENT_NODE) {
      if (there.data !== node.data) there.data = node.data;
    } else if (node.nodeName === "TIME" && there.dateTime === node.dateTime) {
      // shown in local time already
    } else {
      if (node.nodeName === "TIME") delete there.dataset.local;
      morph(there, node);
    }
  });
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
}

function showPiece(id, html) {
  const element = document.getElementById(id);
  if (!element) return;
  const fresh = element.cloneNode(false);
  fresh.innerHTML = html;
  morph(element, fresh);
  showLocalTimes(element);
}

const NOT_CONNECTED = '<span class="dot engine_down"></span><span>not connected</span>';

// The session has ended: to the login form, and from there back to this page. Not a reload, which could send a form again.
const leave = () => location.assign(`/ui/?next=${encodeURIComponent(document.body.dataset.here)}`);

// One stream a page. It rests while the tab is hidden; what changed meanwhile comes with the first message afterwards.
function live(url) {
  let source = null;
  const open = () => {
    if (source || document.hidden) return;
    source = new EventSource(url);
    source.addEventListener("update", (event) => {
      const message = JSON.parse(event.data);
      for (const [id, html] of Object.entries(message.html ?? {})) showPiece(id, html);
      if (message.points) document.dispatchEvent(new CustomEvent("fairlane:points", { detail: message.points }));
      document.body.classList.remove("stale");
    });
    source.addEventListener("ended", leave);
    source.onerror = () => {
      document.body.classList.add("stale");
      showPiece("live-status", NOT_CONNECTED);
      if (source?.readyState === EventSource.CLOSED) { close(); askWhy(); }
    };
  };
  const close = () => { source?.close(); source = null; };
  // A refused stream does not say why: where the session has ended, the login form is next; anything else may pass.
  const askWhy = async () => {
    const answer = await fetch(url, { headers: { accept: "text/event-stream" } }).catch(() => null);
    answer?.body?.cancel();
    if (answer?.status === 401) leave();
    else setTimeout(open, 3000);
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source);
    button.textContent = "Press Ctrl+C";
  }
});

// What asks again and again rests in a hidden tab, too.
document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden && event.target.getAttribute("hx-trigger")?.startsWith("every")) event.preventDefault();
});

// A part that asks for itself again and again is changed in place, so that a click under way is not lost. When what comes asks no more,
// htmx puts it in, which ends the asking.
document.addEventListener("htmx:beforeSwap", (event) => {
  const { target, xhr } = event.detail;
  if (!target.hasAttribute("data-morph") || xhr.status !== 200) return;
  const fresh = new DOMParser().parseFromString(xhr.responseText, "text/html").getElementById(target.id);
  if (!fresh?.hasAttribute("data-morph")) return;
  morph(target, fresh);
  showLocalTimes(target);
  event.detail.shouldSwap = false;
});

document.addEventListener("htmx:afterSettle", (event) => showLocalTimes(event.target));
for (const element of document.querySelectorAll("[data-needs-script]")) element.hidden = false;
showLocalTimes(document);
if (document.body.dataset.live) live(document.body.dataset.live);

// Typing a value of one's own ticks its box.
document.addEventListener("input", (event) => {
  const field = event.target.closest("[data-override]");
  if (!field || event.target.name === "override") return;
  field.querySelector("[name=override]").checked = true;
  field.classList.add("changed");
});
