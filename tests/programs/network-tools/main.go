// curl, dig, getent and nc, as far as Kubernetes' conformance specs use them: their images are made of busybox, which has none of
// them, or without the options. The name it is called by decides.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// Options with a value, of each program.
var valued = map[string]string{"curl": "-w -o -H -X -d --connect-timeout --max-time --retry --resolve -m", "nc": "-w -p -s"}

func main() {
	name := filepath.Base(os.Args[0])
	options, words := arguments(name, os.Args[1:])
	code := 127
	switch name {
	case "curl":
		code = curl(options, words)
	case "dig":
		code = dig(words)
	case "getent":
		code = getent(words)
	case "nc":
		code = nc(options, words)
	}
	os.Exit(code)
}

func arguments(name string, all []string) (map[string]string, []string) {
	options, words := map[string]string{}, []string{}
	takes := map[string]bool{}
	for _, option := range strings.Fields(valued[name]) {
		takes[option] = true
	}
	for i := 0; i < len(all); i++ {
		switch {
		case takes[all[i]] && i+1 < len(all):
			options[all[i]] = all[i+1]
			i++
		case strings.HasPrefix(all[i], "--"):
			option, value, _ := strings.Cut(all[i], "=")
			options[option] = value
		case strings.HasPrefix(all[i], "-"):
			for _, letter := range all[i][1:] {
				options["-"+string(letter)] = ""
			}
		default:
			words = append(words, all[i])
		}
	}
	return options, words
}

func seconds(text string, otherwise time.Duration) time.Duration {
	number, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return otherwise
	}
	return time.Duration(number * float64(time.Second))
}

func has(options map[string]string, names ...string) bool {
	for _, name := range names {
		if _, ok := options[name]; ok {
			return true
		}
	}
	return false
}

// curl's exit codes: 6 without an address, 7 without a connection, 28 after the time.
func curl(options map[string]string, urls []string) int {
	code := 2
	for _, url := range urls {
		code = fetch(options, url)
	}
	return code
}

func fetch(options map[string]string, url string) int {
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	dialer := &net.Dialer{Timeout: seconds(options["--connect-timeout"], 2*time.Minute)}
	client := &http.Client{
		Timeout:   seconds(options["--max-time"]+options["-m"], 0),
		Transport: &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{InsecureSkipVerify: has(options, "-k", "--insecure")}},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			if has(options, "-L", "--location") {
				return nil
			}
			return http.ErrUseLastResponse
		},
	}
	method := "GET"
	if has(options, "-I", "--head") {
		method = "HEAD"
	}
	if has(options, "-d") {
		method = "POST"
	}
	if options["-X"] != "" {
		method = options["-X"]
	}
	request, err := http.NewRequest(method, url, strings.NewReader(options["-d"]))
	if err != nil {
		return complain(3, err)
	}
	request.Header.Set("User-Agent", "curl/8.0")
	if header, value, ok := strings.Cut(options["-H"], ":"); ok {
		request.Header.Set(header, strings.TrimSpace(value))
		if strings.EqualFold(header, "host") {
			request.Host = strings.TrimSpace(value)
		}
	}
	response, err := client.Do(request)
	if err != nil {
		fmt.Print(written(options, 0))
		return complain(failure(err), err)
	}
	defer response.Body.Close()
	out := io.Writer(os.Stdout)
	if file := options["-o"]; file != "" {
		created, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
		if err != nil {
			return complain(23, err)
		}
		defer created.Close()
		out = created
	}
	if has(options, "-i", "--include", "-I", "--head") {
		fmt.Fprintf(out, "%s %s\r\n", response.Proto, response.Status)
		response.Header.Write(out)
		fmt.Fprint(out, "\r\n")
	}
	if _, err := io.Copy(out, response.Body); err != nil {
		return complain(failure(err), err)
	}
	fmt.Print(written(options, response.StatusCode))
	if has(options, "-f", "--fail") && response.StatusCode >= 400 {
		return 22
	}
	return 0
}

// What -w asks for.
func written(options map[string]string, status int) string {
	text := strings.ReplaceAll(options["-w"], `\n`, "\n")
	for _, name := range []string{"%{http_code}", "%{response_code}"} {
		text = strings.ReplaceAll(text, name, fmt.Sprintf("%03d", status))
	}
	return text
}

func failure(err error) int {
	var name *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &name):
		return 6
	case errors.As(err, &timeout) && timeout.Timeout():
		return 28
	default:
		return 7
	}
}

func complain(code int, err error) int {
	fmt.Fprintln(os.Stderr, err)
	return code
}

func nc(options map[string]string, words []string) int {
	network, wait := "tcp", seconds(options["-w"], 0)
	if has(options, "-u") {
		network = "udp"
	}
	if has(options, "-l") {
		return listen(network, options, words)
	}
	if len(words) != 2 {
		return complain(1, errors.New("usage: nc HOST PORT"))
	}
	dialer := net.Dialer{Timeout: wait}
	if has(options, "-s", "-p") {
		port, _ := strconv.Atoi(options["-p"])
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(options["-s"]), Port: port}
		if network == "udp" {
			dialer.LocalAddr = &net.UDPAddr{IP: net.ParseIP(options["-s"]), Port: port}
		}
	}
	connection, err := dialer.Dial(network, net.JoinHostPort(words[0], words[1]))
	if err != nil {
		return complain(1, err)
	}
	defer connection.Close()
	if has(options, "-v") {
		fmt.Fprintf(os.Stderr, "Connection to %s %s port [%s/*] succeeded!\n", words[0], words[1], network)
	}
	if has(options, "-z") {
		return 0
	}
	go func() {
		io.Copy(connection, os.Stdin)
		if stream, ok := connection.(*net.TCPConn); ok {
			stream.CloseWrite()
		}
	}()
	return receive(connection, wait)
}

// Prints what comes until the end, or until nothing has come for that time, as netcat does.
func receive(connection net.Conn, wait time.Duration) int {
	buffer := make([]byte, 64<<10)
	for {
		if wait > 0 {
			connection.SetReadDeadline(time.Now().Add(wait))
		}
		count, err := connection.Read(buffer)
		os.Stdout.Write(buffer[:count])
		var timeout net.Error
		switch {
		case err == nil:
		case err == io.EOF, errors.As(err, &timeout) && timeout.Timeout():
			return 0
		default:
			return complain(1, err)
		}
	}
}

func listen(network string, options map[string]string, words []string) int {
	port := options["-p"]
	if len(words) > 0 {
		port = words[len(words)-1]
	}
	if network == "udp" {
		connection, err := net.ListenPacket(network, ":"+port)
		if err != nil {
			return complain(1, err)
		}
		buffer := make([]byte, 64<<10)
		for {
			count, _, err := connection.ReadFrom(buffer)
			if err != nil {
				return complain(1, err)
			}
			os.Stdout.Write(buffer[:count])
		}
	}
	listener, err := net.Listen(network, ":"+port)
	if err != nil {
		return complain(1, err)
	}
	connection, err := listener.Accept()
	if err != nil {
		return complain(1, err)
	}
	go io.Copy(connection, os.Stdin)
	return receive(connection, 0)
}

func getent(words []string) int {
	if len(words) != 2 {
		return 2
	}
	addresses, err := net.LookupHost(words[1])
	if err != nil {
		return 2
	}
	for _, address := range addresses {
		fmt.Println(address, words[1])
	}
	return 0
}

var types = map[string]dnsmessage.Type{
	"A": dnsmessage.TypeA, "AAAA": dnsmessage.TypeAAAA, "CNAME": dnsmessage.TypeCNAME, "PTR": dnsmessage.TypePTR, "SRV": dnsmessage.TypeSRV,
}

// Prints the data of each answer. Names are completed by the search domains with +search, as dig does.
func dig(words []string) int {
	network, search, server, name, kind := "udp", false, "", "", dnsmessage.TypeA
	for _, word := range words {
		switch {
		case word == "+tcp":
			network = "tcp"
		case word == "+search":
			search = true
		case strings.HasPrefix(word, "+"):
		case strings.HasPrefix(word, "@"):
			server = word[1:]
		case name == "":
			name = word
		default:
			kind = types[word]
		}
	}
	servers, domains, dots := resolver()
	if server == "" {
		server = servers
	}
	names := []string{strings.TrimSuffix(name, ".") + "."}
	if search && !strings.HasSuffix(name, ".") {
		completed := []string{}
		for _, domain := range domains {
			completed = append(completed, name+"."+strings.TrimSuffix(domain, ".")+".")
		}
		if strings.Count(name, ".") >= dots {
			names = append(names, completed...)
		} else {
			names = append(completed, names...)
		}
	}
	for _, name := range names {
		answers, err := ask(network, net.JoinHostPort(server, "53"), name, kind)
		if err != nil {
			return complain(9, err)
		}
		for _, answer := range answers {
			fmt.Println(answer)
		}
		if len(answers) > 0 {
			break
		}
	}
	return 0
}

// What /etc/resolv.conf has.
func resolver() (server string, domains []string, dots int) {
	text, _ := os.ReadFile("/etc/resolv.conf")
	dots = 1
	for _, line := range strings.Split(string(text), "\n") {
		fields := strings.Fields(line)
		switch {
		case len(fields) < 2:
		case fields[0] == "nameserver" && server == "":
			server = fields[1]
		case fields[0] == "search":
			domains = fields[1:]
		case fields[0] == "options":
			for _, option := range fields[1:] {
				if number, err := strconv.Atoi(strings.TrimPrefix(option, "ndots:")); err == nil {
					dots = number
				}
			}
		}
	}
	return server, domains, dots
}

func ask(network, server, name string, kind dnsmessage.Type) ([]string, error) {
	question, err := dnsmessage.NewName(name)
	if err != nil {
		return nil, err
	}
	message := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: uint16(os.Getpid()), RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: question, Type: kind, Class: dnsmessage.ClassINET}},
	}
	packed, err := message.Pack()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	connection, err := (&net.Dialer{}).DialContext(ctx, network, server)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(5 * time.Second))
	received, err := exchange(network, connection, packed)
	if err != nil {
		return nil, err
	}
	if err := message.Unpack(received); err != nil {
		return nil, err
	}
	answers := []string{}
	for _, answer := range message.Answers {
		answers = append(answers, data(answer.Body))
	}
	return answers, nil
}

func exchange(network string, connection net.Conn, packed []byte) ([]byte, error) {
	buffer := make([]byte, 64<<10)
	if network == "udp" {
		if _, err := connection.Write(packed); err != nil {
			return nil, err
		}
		count, err := connection.Read(buffer)
		return buffer[:count], err
	}
	framed := bytes.NewBuffer(binary.BigEndian.AppendUint16(nil, uint16(len(packed))))
	framed.Write(packed)
	if _, err := connection.Write(framed.Bytes()); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(connection, buffer[:2]); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint16(buffer)
	_, err := io.ReadFull(connection, buffer[:length])
	return buffer[:length], err
}

func data(body dnsmessage.ResourceBody) string {
	switch body := body.(type) {
	case *dnsmessage.AResource:
		return net.IP(body.A[:]).String()
	case *dnsmessage.AAAAResource:
		return net.IP(body.AAAA[:]).String()
	case *dnsmessage.CNAMEResource:
		return body.CNAME.String()
	case *dnsmessage.PTRResource:
		return body.PTR.String()
	case *dnsmessage.SRVResource:
		return fmt.Sprintf("%d %d %d %s", body.Priority, body.Weight, body.Port, body.Target)
	default:
		return body.GoString()
	}
}
